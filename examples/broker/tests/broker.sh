# Sourced by the other scripts. They set `target` and `work` before, and are in the root of the repository.
# shellcheck shell=bash

# Another build of the broker may be named.
program=${BROKER:-$target/release/delaywheel-broker}
[[ -n ${BROKER:-} ]] || cargo build --quiet --release -p delaywheel-broker

broker=

# start_broker OPTION..: starts a broker, and sets `broker`, `address` and `port`.
start_broker() {
    : > "$work/broker.log"
    "$program" --listen localhost:0 "$@" > "$work/broker.log" 2>&1 &
    broker=$!
    for _ in {1..100}; do
        address=$(sed -n 's/^listening at \(.*\);.*/\1/p' "$work/broker.log")
        port=${address##*:}
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
