#!/usr/bin/env bash
# Runs the suites of Kafka clients against the broker, as far as they need one broker and no encryption. On demand: it
# takes half an hour. `docs/broker.md` has the results and the reasons of failures.
#
#   examples/broker/tests/suites.sh [SUITE..]
#
# Suites: librdkafka kafka-python aiokafka kafkajs; without an argument the first two, whose packages contain their
# tests. The sources of librdkafka come from Debian by apt-get, which needs root; those of kafka-python come from PyPI.
# For the others, AIOKAFKA or KAFKAJS names a folder with the sources of a release.
set -euo pipefail
cd "$(dirname "$0")/../../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$target/suites
mkdir -p "$work"
[[ $# -gt 0 ]] || set -- librdkafka kafka-python

passed=0 failed=0 skipped=0
# shellcheck source=examples/broker/tests/broker.sh
source examples/broker/tests/broker.sh

# count SUITE PASSED FAILED SKIPPED
count() {
    printf '%s: %d passed, %d failed, %d skipped; see %s\n' "$@" "$work/$1.log"
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
}

# matches PATTERN FILE: the number of lines.
matches() {
    grep -cE "$1" "$2" || true
}

# apt_source PACKAGE: unpacks the sources of a Debian package, from the archives that the machine already uses.
apt_source() {
    local parts=$work/apt/parts lists=$work/apt/lists options
    mkdir -p "$parts" "$lists/partial"
    cp /etc/apt/sources.list.d/*.sources "$parts"
    sed -i 's/^Types: deb$/Types: deb-src/' "$parts"/*.sources
    options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$parts" -o "Dir::State::lists=$lists")
    apt-get -qq "${options[@]}" update
    (cd "$work" && apt-get -qq "${options[@]}" source "$1")
}

# venv NAME PACKAGE..: a virtual environment with packages.
venv() {
    [[ -x $work/$1-env/bin/python ]] || python3 -m venv "$work/$1-env"
    "$work/$1-env/bin/pip" install --quiet pytest pytest-mock "${@:2}"
}

install_librdkafka() {
    compgen -G "$work/librdkafka-*/tests/test-runner" && return
    apt-get -qq install -y dpkg-dev gcc g++ make rapidjson-dev zlib1g-dev liblz4-dev
    rm -rf "$work"/librdkafka-*
    apt_source librdkafka
    cd "$work"/librdkafka-*/
    ./configure --disable-ssl --disable-gssapi --disable-sasl --disable-curl --disable-zstd
    make -j2 libs
    make -C tests build
}

# To the tests, it is a broker of version 2.8. `-Q`: fewer messages.
run_librdkafka() {
    local log=$work/librdkafka.log summary=$work/librdkafka.summary
    cd "$work"/librdkafka-*/tests
    printf '%s\n' "metadata.broker.list=localhost:$port" test.topic.random=true > test.conf
    LD_LIBRARY_PATH=../src:../src-cpp timeout 1800 ./test-runner -p2 -Q -V 2.8.0 > "$log" 2>&1 || true
    sed 's/\x1b\[[0-9;]*m//g' "$log" | sed -n '/SUMMARY/,$p' | grep -E '^\| [0-9]{4}_' > "$summary"
    count librdkafka "$(matches PASSED "$summary")" "$(matches FAILED "$summary")" "$(matches SKIPPED "$summary")"
    grep FAILED "$summary" || true
}

# The package lacks a file that starts brokers. The tests of one that runs already need only its names.
install_kafka-python() {
    venv kafka-python kafka-python pytest-timeout py cramjam lz4 zstandard python-snappy
    compgen -G "$work/kafka_python-*/test/service.py" && return
    rm -rf "$work"/kafka_python-*
    "$work/kafka-python-env/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$work" kafka-python
    tar xzf "$work"/kafka_python-*.tar.gz -C "$work"
    cd "$work"/kafka_python-*/
    touch test/__init__.py
    cat > test/service.py << 'PYTHON'
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    open = close = dump_logs = lambda self: None


class SpawnedService:
    pass
PYTHON
}

run_kafka-python() {
    cd "$work"/kafka_python-*/
    KAFKA_ROOT=$PWD KAFKA_VERSION=3.8.0 KAFKA_URI=kafka://localhost:$port \
        timeout 1800 "$work/kafka-python-env/bin/python" -m pytest -q -rA --tb=native \
        -k 'not ssl and not sasl and not transaction' test/integration > "$work/kafka-python.log" 2>&1 || true
    count_pytest kafka-python
}

count_pytest() {
    local log=$work/$1.log
    count "$1" "$(matches '^PASSED test' "$log")" "$(matches '^(FAILED|ERROR) test' "$log")" \
        "$(grep -E ' in [0-9.]+s' "$log" | tail -n 1 | grep -oE '[0-9]+ skipped' | grep -oE '[0-9]+' || echo 0)"
    grep -E '^(FAILED|ERROR) test' "$log" || true
}

install_aiokafka() {
    venv aiokafka aiokafka pytest-asyncio docker cramjam
    [[ -n ${AIOKAFKA:-} ]]
    rm -rf "$work/aiokafka"
    mkdir "$work/aiokafka"
    cp -r "$AIOKAFKA/tests" "$work/aiokafka"
    # The broker in place of a container.
    cat >> "$work/aiokafka/tests/conftest.py" << 'PYTHON'


@pytest.fixture(scope="class")
def setup_test_class(request, loop):
    cls = request.cls
    cls.loop = loop
    cls.kafka_host, cls.kafka_port = "localhost", int(os.environ["BROKER_PORT"])
    cls.hosts = [f"{cls.kafka_host}:{cls.kafka_port}"]
    cls.kafka_version = "2.8.1"
PYTHON
}

run_aiokafka() {
    cd "$work/aiokafka"
    BROKER_PORT=$port timeout 1800 "$work/aiokafka-env/bin/python" -m pytest -q -rA --tb=native \
        -o asyncio_mode=auto -k 'not ssl and not sasl and not transaction' tests > "$work/aiokafka.log" 2>&1 || true
    count_pytest aiokafka
}

install_kafkajs() {
    [[ -n ${KAFKAJS:-} ]]
    rm -rf "$work/kafkajs"
    cp -r "$KAFKAJS" "$work/kafkajs"
    cd "$work/kafkajs"
    npm install --ignore-scripts --no-audit --no-fund
}

# Its brokers are at fixed ports. A test of the pool of brokers needs three.
run_kafkajs() {
    cd "$work/kafkajs"
    sed -i "s/9092/$port/; s/, \`\${host}:909[58]\`//g" testHelpers/index.js
    KAFKA_VERSION=2.4 NODE_ENV=test timeout 1800 npx jest --forceExit --maxWorkers=1 --reporters=default \
        --testPathIgnorePatterns /node_modules/ /brokerPool --testTimeout=20000 \
        -t '^(?!.*([Tt]ransaction|SSL|SASL|OAUTHBEARER))' --json --outputFile="$work/kafkajs.json" > "$work/kafkajs.log" 2>&1 || true
    local total="const r = require('$work/kafkajs.json'); console.log"
    count kafkajs $(node -e "$total(r.numPassedTests, r.numFailedTests, r.numPendingTests)")
    grep -E '^  ● ' "$work/kafkajs.log" | sort -u || true
}

for suite; do
    # A job, since bash ignores errors in a function that is part of a condition.
    "install_$suite" > "$work/install.log" 2>&1 &
    if wait $!; then
        # The settings of the brokers that the suites start.
        case $suite in
            librdkafka | kafka-python) start_broker --group-delay-ms 0 --partitions 4 ;;
            *) start_broker --group-delay-ms 0 --partitions 2 ;;
        esac
        # A suite may leave its folder.
        pushd . > /dev/null
        "run_$suite"
        popd > /dev/null
        stop_broker
    else
        echo "$suite: its sources cannot be had from the package sources of this machine"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
