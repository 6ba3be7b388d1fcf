//! Every short script on a tiny wheel, compared with the oracle.

use crate::{
    machine::Machine,
    script::{Op, Pick, Setup, When},
};

const ALPHABET: [Op; 13] = [
    insert(0),
    insert(1),
    insert(2),
    insert(5),
    Op::Cancel(Pick::Pending(0)),
    Op::Cancel(Pick::Newest),
    Op::Reset(Pick::Pending(0), When::now(1)),
    Op::Reset(Pick::Pending(0), When::now(6)),
    Op::Reset(Pick::Newest, When::next(-1)),
    advance(When::now(1), None),
    advance(When::next(0), None),
    advance(When::now(4), Some(1)),
    advance(When::now(40), None),
];

/// Operations of the longest script. Without optimization, the longest ones take minutes.
const LONGEST: u32 = if cfg!(debug_assertions) { 3 } else { 5 };

#[test]
fn all_short_scripts_agree_with_the_oracle() {
    assert_eq!(run_all(0, LONGEST), scripts_of_up_to(LONGEST));
}

#[test]
fn all_shorter_scripts_agree_with_the_oracle_from_every_border() {
    let longest = LONGEST - 1;
    for start in [1, 2, 3, 6, 7, (1 << 32) - 2, u64::MAX - 41, u64::MAX - 5, u64::MAX] {
        assert_eq!(run_all(start, longest), scripts_of_up_to(longest));
    }
}

fn scripts_of_up_to(longest: u32) -> usize {
    (1..=longest).map(|length| ALPHABET.len().pow(length)).sum()
}

/// Runs all scripts of one to `longest` operations on a wheel of size 2, and counts them.
fn run_all(start: u64, longest: u32) -> usize {
    let setup = Setup { size: 2, start, max_pending: u32::MAX };
    let scripts = (1..=longest)
        .flat_map(|length| (0..ALPHABET.len().pow(length)).map(move |number| (length, number)));
    scripts.inspect(|&(length, number)| run(setup, length, number)).count()
}

/// Runs the script whose operations are the digits of a number. Compares after the last operation
/// only, since the operations before it are another script.
fn run(setup: Setup, length: u32, number: usize) {
    let mut machine = Machine::new(setup);
    for position in 0..length {
        let digit = number / ALPHABET.len().pow(position) % ALPHABET.len();
        machine.apply(ALPHABET[digit]);
    }
    machine.compare();
    machine.finish();
}

const fn insert(ahead: i128) -> Op {
    Op::Insert { at: When::now(ahead), count: 1 }
}

const fn advance(to: When, limit: Option<u64>) -> Op {
    Op::Advance { to, limit }
}
