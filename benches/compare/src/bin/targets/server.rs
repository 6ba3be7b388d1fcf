//! A request server: every request has a timeout, and nearly all are answered before it expires.

use delaywheel_compare::{
    Timers,
    drive::timed,
    report::{
        rounds::{Contestant, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
    timers::{BTree, DelayQueue, LazyHeap, Wheel},
    workload::{SECOND, Spread, Workload},
};

use crate::entrant::Entrant;

/// Requests that wait for an answer at any time.
pub(crate) const IN_FLIGHT: u32 = 100_000;

/// Requests answered, and new ones made, in each tick: a million in a second.
const PER_TICK: usize = 1_000;

/// Ticks after which a request that was not answered expires.
const DELAY: u64 = 2 * SECOND;

/// Pairs of cancel and insert in one turn.
pub(crate) const PAIRS: u32 = 1_000_000;

/// Which request is answered next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Random,
    OldestFirst,
}

impl Order {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::OldestFirst => "oldest first",
        }
    }

    /// The requests that are answered in one turn.
    pub(crate) fn victims(self) -> Vec<u32> {
        match self {
            Self::Random => Workload::new(Spread::Minute, 3).victims(IN_FLIGHT, PAIRS),
            Self::OldestFirst => (0..IN_FLIGHT).cycle().take(PAIRS as usize).collect(),
        }
    }
}

/// Nanoseconds per pair, time moving included.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let row = |order: Order| {
        let medians = Medians::of(
            settings.rounds,
            vec![
                Turn::boxed(Entrant::<Wheel>::new(), order),
                Turn::boxed(Entrant::<LazyHeap>::new(), order),
                Turn::boxed(Entrant::<BTree>::new(), order),
                Turn::boxed(Entrant::<DelayQueue>::new(), order),
            ],
        );
        Row::new(format!("request server, {}", order.name()), "ns/pair", medians.figure(0))
    };
    vec![row(Order::Random).at_most(20.0), row(Order::OldestFirst)]
}

/// The timeouts of the requests in flight.
pub(crate) struct Server<T: Timers> {
    pub(crate) timers: T,
    /// The timeout of each request.
    pub(crate) keys: Vec<T::Key>,
    now: u64,
    /// Requests whose timeout expired in this tick.
    expired: Vec<u64>,
}

impl<T: Timers> Server<T> {
    /// Takes room for the keys, so that what is allocated later is the contestant's.
    pub(crate) fn new(timers: T) -> Self {
        let expired = Vec::with_capacity(PER_TICK);
        Self { timers, keys: Vec::with_capacity(IN_FLIGHT as usize), now: 0, expired }
    }

    /// Makes the requests, a few in each tick.
    pub(crate) fn ramp_up(&mut self) {
        for request in 0..IN_FLIGHT {
            self.keys.push(self.timers.insert(self.now + DELAY, u64::from(request)));
            if self.keys.len().is_multiple_of(PER_TICK) {
                self.tick();
            }
        }
    }

    /// Answers requests and makes others in their stead, while time moves.
    pub(crate) fn serve(&mut self, victims: &[u32]) {
        for victims in victims.chunks(PER_TICK) {
            for &request in victims {
                let key = &mut self.keys[request as usize];
                assert!(self.timers.cancel(*key), "a request in flight had no timeout");
                *key = self.timers.insert(self.now + DELAY, u64::from(request));
            }
            self.tick();
        }
    }

    /// Lets a tick pass; a request whose timeout expires is made again.
    fn tick(&mut self) {
        self.now += 1;
        self.timers.advance(self.now, |request| self.expired.push(request));
        for request in self.expired.drain(..) {
            let key = self.timers.insert(self.now + DELAY, request);
            self.keys[usize::try_from(request).expect("requests are counted in u32")] = key;
        }
    }
}

/// A request server in its steady state.
struct Turn<T: Timers> {
    name: &'static str,
    server: Server<T>,
    victims: Vec<u32>,
}

impl<T: Timers + 'static> Turn<T> {
    fn boxed(entrant: Entrant<T>, order: Order) -> Box<dyn Contestant<1>> {
        let Entrant { name, make } = entrant;
        let (mut server, victims) = (Server::new(make()), order.victims());
        server.ramp_up();
        for _ in 0..4 {
            server.serve(&victims);
        }
        Box::new(Self { name, server, victims })
    }
}

impl<T: Timers> Contestant<1> for Turn<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn measure(&mut self) -> [f64; 1] {
        let (duration, ()) = timed(|| self.server.serve(&self.victims));
        assert_eq!(self.server.timers.len(), IN_FLIGHT as usize);
        [nanos_per(duration, PAIRS)]
    }
}
