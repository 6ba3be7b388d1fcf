//! A set of small numbers that knows the least one: a bit for each.

use alloc::vec::Vec;

/// Numbers of buckets, or of ticks in a range.
#[derive(Debug)]
pub(super) struct Occupied {
    words: Vec<u64>,
    first: Option<usize>,
}

impl Occupied {
    pub(super) const fn new() -> Self {
        Self { words: Vec::new(), first: None }
    }

    #[inline]
    pub(super) const fn first(&self) -> Option<usize> {
        self.first
    }

    pub(super) fn set(&mut self, number: usize) {
        if number / 64 >= self.words.len() {
            self.words.resize(number / 64 + 1, 0);
        }
        self.words[number / 64] |= 1 << (number % 64);
        self.first = Some(self.first.map_or(number, |first| first.min(number)));
    }

    /// Removes a number. Returns whether it was the first.
    pub(super) fn clear(&mut self, number: usize) -> bool {
        self.words[number / 64] &= !(1 << (number % 64));
        let was_first = self.first == Some(number);
        if was_first {
            self.first = self.after(number);
        }
        was_first
    }

    /// Returns the least number after this one.
    pub(super) fn after(&self, number: usize) -> Option<usize> {
        let rest = self.words[number / 64] & (!1 << (number % 64));
        let rest = (rest != 0).then_some((number / 64, rest)).into_iter();
        let later = (number / 64 + 1..).zip(self.words.iter().skip(number / 64 + 1).copied());
        let (at, word) = rest.chain(later).find(|&(_, word)| word != 0)?;
        Some(at * 64 + word.trailing_zeros() as usize)
    }

    pub(super) fn check_invariants(&self) {
        let mut words = (0..).zip(&self.words).filter(|&(_, &word)| word != 0);
        let first = words.next().map(|(at, word)| at * 64 + word.trailing_zeros() as usize);
        assert_eq!(self.first, first, "the least number is not the first");
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_agrees_with_a_sorted_set() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut occupied, mut set) = (Occupied::new(), BTreeSet::new());
        for _ in 0..10_000 {
            let number = random.usize(..300);
            if random.bool() {
                occupied.set(number);
                set.insert(number);
                assert_eq!(occupied.after(number), set.range(number + 1..).next().copied());
            } else if set.contains(&number) {
                assert_eq!(occupied.clear(number), set.first() == Some(&number));
                set.remove(&number);
            }
            assert_eq!(occupied.first(), set.first().copied());
        }
    }
}
