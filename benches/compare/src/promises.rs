//! What a contestant promises, so that it is judged by that and by no more.

/// What a contestant is and what it promises. Times are in ticks of one millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Its structure as the field calls it, and whose it is.
    pub scheme: &'static str,
    /// What may surprise, in a sentence that fits a table; empty if nothing does.
    pub describes: &'static str,
    /// Whether a timeout can be cancelled, and so be moved.
    pub can_cancel: bool,
    /// How far ahead a timeout may lie; `None` if there is no limit below a thousand years.
    pub max_delay: Option<u64>,
    /// How much a timeout may expire before its deadline, be it one between two ticks.
    pub earliness: u64,
    /// How much a timeout may expire after its deadline, or be left by an advance beyond it.
    pub lateness: u64,
    /// Whether one advance hands out what is due in the order of deadlines.
    pub ordered: bool,
    /// Whether the key of a timeout that is gone is told from all others, and so is answered that it
    /// is not pending. If not, such a key may panic or may name another timeout.
    pub safe_keys: bool,
    /// When it asks to be woken.
    pub wakes: Wakes,
    /// The greatest number of pending timeouts at which its cost is worth measuring, since beyond it
    /// takes minutes.
    pub largest: u32,
}

/// When a contestant asks to be woken while anything is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakes {
    /// When it has something to do.
    WhenBusy,
    /// When it has something to do, and for what was cancelled, even if nothing is pending any more.
    ForCancelled,
    /// At least once in so many ticks, whether it has something to do or not. A year of that is not
    /// to be waited for, but can be calculated.
    Every(u64),
}

impl Promises {
    /// Nothing is withheld: any delay, any number, never early, never late, in order.
    pub const STRICT: Self = Self {
        scheme: "",
        describes: "",
        can_cancel: true,
        max_delay: None,
        earliness: 0,
        lateness: 0,
        ordered: true,
        safe_keys: true,
        wakes: Wakes::WhenBusy,
        largest: u32::MAX,
    };
}
