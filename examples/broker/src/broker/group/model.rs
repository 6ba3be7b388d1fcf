//! A model test of groups: simulated processes join, lag, die and come back in virtual time, beside
//! an oracle that knows only the promises:
//!
//! - the generation never goes back;
//! - in a generation no partition has two owners, and once the group is at rest each has one;
//! - no join and no sync waits for longer than the longest rebalance timeout;
//! - a process that dies is a member exactly until its session ends, or until a step of a rebalance
//!   ends without it; one that leaves is not a member from then on.

use std::{collections::HashMap, sync::Arc, time::Duration};

use delaywheel::ManualClock;
use fastrand::Rng;

use super::{
    coordinator::{Coordinator, Waits},
    message::{Assignments, Granted, Identity, Join, Name, Outcome},
    state::Phase,
};
use crate::broker::{Config, grammar::MAX_STRING_BYTES};
use crate::prelude::*;

const GROUP: Name = Name::from_static_str("group");
const PARTITIONS: u8 = 7;
const STEP: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3_600);
const BEAT: Duration = Duration::from_millis(500);
const INITIAL_DELAY: Duration = Duration::from_millis(700);
const SESSIONS: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_secs(4)];
const REBALANCES: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(5)];

#[derive(Default)]
enum State {
    #[default]
    Dead,
    /// It joins at that time.
    Idle(Duration),
    Joining(Waits),
    /// It has joined, and syncs with its assignments at that time; until then it sends heartbeats.
    Stalled(Duration, Assignments),
    Syncing(Waits),
    Member,
}

#[derive(Default)]
struct Process {
    state: State,
    who: Identity,
    session: Duration,
    rebalance: Duration,
    owned: Vec<u8>,
    waiting_since: Duration,
    last_beat: Duration,
    /// When the coordinator last heard of it.
    contact: Duration,
}

/// A process that has died, as a member.
struct Ghost {
    /// With the last generation that the process had joined.
    who: Identity,
    /// The end of its session.
    deadline: Duration,
    /// That of the group when it died.
    generation: i32,
    /// Rounds of joins that had timed out when it died.
    rounds: u64,
    /// Whether it had its assignment in that generation.
    was_synced: bool,
}

struct World {
    clock: ManualClock,
    coordinator: Arc<Coordinator>,
    random: Rng,
    processes: Vec<Process>,
    ghosts: Vec<Ghost>,
    generation: i32,
    /// The owner of each partition in each generation.
    owners: HashMap<(i32, u8), Name>,
    /// Whether processes do everything at once.
    is_prompt: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let clock = ManualClock::new();
        let config =
            Config { group_delay: INITIAL_DELAY, clock: Some(clock.clone()), ..Config::default() };
        let mut random = Rng::with_seed(seed);
        let instance = |index: usize| (index < 2).then(|| format!("instance-{index}").into());
        let processes = (0..5).map(|index| Process {
            who: Identity { instance: instance(index), ..Identity::default() },
            session: random.choice(SESSIONS).unwrap(),
            rebalance: random.choice(REBALANCES).unwrap(),
            ..Process::default()
        });
        Self {
            clock,
            coordinator: Coordinator::new(&config, Arc::default()),
            processes: processes.collect(),
            random,
            ghosts: Vec::new(),
            generation: 0,
            owners: HashMap::new(),
            is_prompt: false,
        }
    }

    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Returns the generation of the group, and its members.
    fn group(&self) -> (i32, Vec<Name>) {
        let groups = self.coordinator.groups();
        let Some(entry) = groups.get(&GROUP) else { return (0, Vec::new()) };
        let members = entry.group.members().map(|(id, ..)| id.clone());
        (entry.group.generation(), members.collect())
    }

    /// Makes one process take an action that is allowed at any time.
    fn disturb(&mut self) {
        let index = self.random.usize(..self.processes.len());
        let is_dead = matches!(self.processes[index].state, State::Dead);
        match self.random.u8(..10) {
            0..=3 if is_dead => self.start(index),
            0 => self.kill(index),
            1 => self.leave(index),
            _ => {}
        }
    }

    fn start(&mut self, index: usize) {
        let now = self.now();
        let process = &mut self.processes[index];
        process.forget();
        process.owned.clear();
        process.state = State::Idle(now);
    }

    /// Kills a process: its connection closes.
    fn kill(&mut self, index: usize) {
        let now = self.now();
        let was_member = self.group().1.contains(&self.processes[index].who.member);
        let process = &mut self.processes[index];
        let state = std::mem::replace(&mut process.state, State::Dead);
        if !was_member {
            return;
        }
        let mut deadline = process.contact + process.session;
        if matches!(state, State::Joining(_) | State::Syncing(_)) {
            let is_known = process.who.generation > 0 || process.who.instance.is_some();
            deadline = now + if is_known { process.session } else { Duration::ZERO };
        }
        let ghost = Ghost {
            who: process.who.clone(),
            deadline,
            generation: self.generation,
            rounds: self.coordinator.stats().rounds.expired,
            was_synced: matches!(state, State::Member) && process.who.generation == self.generation,
        };
        drop(state);
        self.ghosts.push(ghost);
    }

    fn leave(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if !matches!(process.state, State::Member) {
            return;
        }
        process.state = State::Dead;
        let Identity { member, instance, .. } = process.who.clone();
        // It may have been removed before, and not know it yet.
        let _ = self.coordinator.leave(&GROUP, &member, instance.as_ref());
        assert!(!self.group().1.contains(&member), "{member} has left");
    }

    /// Makes every process take its next action, until none has one.
    fn settle(&mut self) {
        while (0..self.processes.len()).any(|index| self.step(index)) {}
    }

    /// Returns whether a process has done something.
    fn step(&mut self, index: usize) -> bool {
        let now = self.now();
        let process = &mut self.processes[index];
        match &mut process.state {
            State::Idle(at) if *at <= now => self.join(index),
            State::Joining(waits) | State::Syncing(waits) => match waits.try_ended() {
                Some(outcome) => self.answered(index, outcome),
                None => return false,
            },
            State::Stalled(at, _) if *at <= now => self.sync(index),
            State::Member | State::Stalled(..) if process.last_beat + BEAT <= now => {
                self.beat(index);
            }
            State::Dead | State::Idle(_) | State::Member | State::Stalled(..) => return false,
        }
        true
    }

    fn join(&mut self, index: usize) {
        let now = self.now();
        let process = &mut self.processes[index];
        let join = Join {
            member: process.who.member.clone(),
            instance: process.who.instance.clone(),
            client_id: "é".repeat(index / 4 * 500).into(),
            session_timeout: process.session,
            rebalance_timeout: process.rebalance,
            protocol_type: "consumer".into(),
            protocols: vec![("range".into(), Bytes::new())],
            ..Join::default()
        };
        process.waiting_since = now;
        match self.coordinator.join(&GROUP, join) {
            Ok(waits) => process.state = State::Joining(waits),
            Err(error) => self.recover(index, error),
        }
        if let Some(instance) = &self.processes[index].who.instance {
            // It takes the place of its predecessor.
            self.ghosts.retain(|ghost| ghost.who.instance.as_ref() != Some(instance));
        }
    }

    fn answered(&mut self, index: usize, outcome: Outcome) {
        let process = &mut self.processes[index];
        process.contact = self.clock.elapsed();
        match outcome {
            Ok(Granted::Joined(joined)) => self.joined(index, joined),
            Ok(Granted::Synced(synced)) => self.synced(index, &synced.assignment),
            Err(error) => self.recover(index, error),
        }
    }

    fn joined(&mut self, index: usize, joined: JoinGroupResponse) {
        let stall = self.delay(16, 8_000);
        let now = self.now();
        let process = &mut self.processes[index];
        assert!(joined.generation_id >= self.generation, "generations go up");
        assert!(joined.generation_id >= process.who.generation);
        assert!(joined.member_id.len() <= MAX_STRING_BYTES, "a request may name it");
        self.generation = joined.generation_id;
        process.who.generation = joined.generation_id;
        process.who.member = joined.member_id;
        process.last_beat = now;
        process.state = State::Stalled(now + stall, assign(&joined.members));
        for member in &joined.members {
            self.check_joined(member, joined.generation_id);
        }
    }

    /// Returns how long a process lags: usually zero.
    fn delay(&mut self, one_in: u8, most_ms: u64) -> Duration {
        let is_slow = !self.is_prompt && self.random.u8(..one_in) == 0;
        Duration::from_millis(if is_slow { self.random.u64(..most_ms) } else { 0 })
    }

    /// Checks that a generation is made of members that have joined it. Static ones may be away.
    fn check_joined(&self, member: &JoinGroupResponseMember, generation: i32) {
        let has_joined = |process: &Process| {
            let joins = matches!(process.state, State::Joining(_));
            // The answer to a first join brings the id.
            let id = &process.who.member;
            let is_it = *id == member.member_id || joins && id.is_empty();
            is_it && (joins || process.who.generation == generation)
        };
        let is_dead = |ghost: &Ghost| {
            ghost.who.member == member.member_id && ghost.who.generation == generation
        };
        let is_static = member.group_instance_id.is_some();
        let joined = self.processes.iter().any(has_joined) || self.ghosts.iter().any(is_dead);
        assert!(is_static || joined, "{} has not joined generation {generation}", member.member_id);
    }

    fn sync(&mut self, index: usize) {
        let now = self.now();
        let process = &mut self.processes[index];
        let State::Stalled(_, assignments) = &mut process.state else { return };
        let assignments = std::mem::take(assignments);
        process.waiting_since = now;
        match self.coordinator.sync(&GROUP, process.who.clone(), assignments) {
            Ok(waits) => self.processes[index].state = State::Syncing(waits),
            Err(error) => self.recover(index, error),
        }
    }

    fn synced(&mut self, index: usize, assignment: &Bytes) {
        let now = self.now();
        let process = &mut self.processes[index];
        process.state = State::Member;
        process.last_beat = now;
        process.owned = assignment.to_vec();
        let owner = process.who.instance.clone().unwrap_or_else(|| process.who.member.clone());
        for &partition in assignment {
            let key = (process.who.generation, partition);
            let first = self.owners.entry(key).or_insert_with(|| owner.clone());
            assert_eq!(*first, owner, "partition {partition} has two owners");
        }
    }

    fn beat(&mut self, index: usize) {
        let now = self.now();
        let process = &mut self.processes[index];
        process.last_beat = now;
        let outcome = self.coordinator.heartbeat(&GROUP, &process.who);
        if matches!(outcome, Ok(()) | Err(ResponseError::RebalanceInProgress)) {
            process.contact = now;
        }
        if let Err(error) = outcome {
            self.recover(index, error);
        }
    }

    /// Makes a process join again after an error, soon or so late that the others continue without
    /// it.
    fn recover(&mut self, index: usize, error: ResponseError) {
        let at = self.now() + self.delay(8, 7_000);
        let process = &mut self.processes[index];
        process.owned.clear();
        match error {
            ResponseError::RebalanceInProgress | ResponseError::IllegalGeneration => {}
            ResponseError::UnknownMemberId => process.forget(),
            other => panic!("{other:?}"),
        }
        process.state = State::Idle(at);
    }

    /// Checks the promises that hold at any time.
    fn check(&mut self) {
        let now = self.now();
        for process in &self.processes {
            if matches!(process.state, State::Joining(_) | State::Syncing(_)) {
                let waited = now.saturating_sub(process.waiting_since);
                assert!(waited <= REBALANCES[1], "{} has waited {waited:?}", process.who.member);
            }
        }
        let (generation, members) = self.group();
        let rounds = || self.coordinator.stats().rounds.expired;
        self.ghosts.retain(|ghost| {
            let is_member = members.contains(&ghost.who.member);
            let is_over = now >= ghost.deadline;
            assert!(!(is_member && is_over), "{} outlives its session", ghost.who.member);
            let is_rebalanced = is_member
                || !ghost.was_synced
                || members.is_empty()
                || generation != ghost.generation
                || rounds() != ghost.rounds;
            assert!(is_member || is_over || is_rebalanced, "{} ends early", ghost.who.member);
            is_member
        });
    }

    fn advance(&mut self) {
        self.clock.advance(STEP);
        self.check();
        self.settle();
        self.check();
    }

    /// Checks that a group which is left alone comes to rest, with all that it needs.
    fn come_to_rest(&mut self) {
        self.is_prompt = true;
        if matches!(self.processes[0].state, State::Dead) {
            self.start(0);
        }
        for _ in 0..400 {
            self.advance();
        }
        let groups = self.coordinator.groups();
        let group = &groups[&GROUP].group;
        assert_eq!((group.phase(), group.generation()), (Phase::Stable, self.generation));
        let alive: Vec<_> =
            self.processes.iter().filter(|process| !matches!(process.state, State::Dead)).collect();
        assert_eq!(group.members().count(), alive.len());
        let mut owned: Vec<u8> = alive.iter().flat_map(|process| process.owned.clone()).collect();
        owned.sort_unstable();
        assert_eq!(owned, (0..PARTITIONS).collect::<Vec<_>>(), "each partition has one owner");
    }
}

impl Process {
    /// Continues as a process that has not joined.
    fn forget(&mut self) {
        self.who = Identity { instance: self.who.instance.take(), ..Identity::default() };
    }
}

/// Assigns the partitions, as the client that leads does.
fn assign(members: &[JoinGroupResponseMember]) -> Assignments {
    let count = members.len();
    let share = |index: usize| (0..PARTITIONS).filter(move |&p| usize::from(p) % count == index);
    let assigned = members.iter().enumerate();
    assigned.map(|(index, member)| (member.member_id.clone(), share(index).collect())).collect()
}

#[test]
fn every_promise_holds_for_all_actions_of_members() {
    let mut rebalances = 0;
    for seed in 0..500 {
        let mut world = World::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..300 {
                world.disturb();
                world.settle();
                world.check();
                world.advance();
            }
            world.come_to_rest();
        }));
        assert!(run.is_ok(), "seed {seed} at {:?}", world.now());
        let stats = world.coordinator.stats();
        rebalances += world.coordinator.counts.read().rebalances;
        assert_eq!((stats.rounds.panicked, stats.requests.panicked), (0, 0));
    }
    assert!(rebalances > 5_000, "{rebalances} rebalances are hardly a test");
}

#[test]
fn a_join_waits_for_the_end_of_its_round_and_no_round_begins_after_the_close() {
    let mut world = World::new(0);
    for index in 0..2 {
        world.processes[index].rebalance = HOUR;
        world.start(index);
        world.settle();
    }
    // The first part of the round ends late, after the longest time of the round.
    world.clock.jump(HOUR);
    world.clock.advance(INITIAL_DELAY);
    for process in &mut world.processes[..2] {
        let State::Joining(waits) = &mut process.state else { panic!("it waits") };
        assert!(waits.try_ended().is_some_and(|outcome| outcome.is_ok()));
    }
    world.coordinator.close();
    world.coordinator.leave(&GROUP, &world.group().1[0], None).unwrap();
}
