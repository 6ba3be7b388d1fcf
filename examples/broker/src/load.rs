//! The load of a run without options: Kafka clients in this process, which check every record.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use delaywheel::Timer;
use delaywheel_broker::client::{self, Client};
use delaywheel_broker::prelude::*;
use futures::future::{join, join_all};
use kafka_protocol::records::RecordBatchDecoder;
use tokio::sync::watch;

/// Each of the first partitions has a producer, and a group shares them. The last is mostly idle.
pub(crate) const PARTITIONS: u8 = 5;
const IDLE: i32 = 4;

type Ends = BTreeMap<i32, i64>;

/// Produces for so long, and consumes until all records have arrived, each once and in order;
/// panics if one has not. Returns how many, and how long the idle partition took for each.
pub(crate) async fn run(broker: SocketAddr, time: Duration) -> (i64, Vec<Duration>) {
    let (timer, end) = (Timer::new(), Instant::now() + time);
    let (goals, goal) = watch::channel(None);
    let members = [(); 2].map(|()| tokio::spawn(consume(broker, goal.clone())));
    let idle = tokio::spawn(wait(broker, timer.clone(), end));
    let producers = (0..IDLE).map(|at| tokio::spawn(fill(broker, at, timer.clone(), end)));
    let ends: Ends = join_all(producers).await.into_iter().map(Result::unwrap).collect();
    goals.send_replace(Some(ends.clone()));
    let read = client::soon(join_all(members)).await.into_iter().flat_map(Result::unwrap);
    assert_eq!(read.collect::<Ends>(), ends, "the end of each partition");
    (ends.into_values().sum(), idle.await.unwrap())
}

/// Appends records to a partition, and waits until all replicas have them.
async fn append(client: &mut Client, partition: i32, from: i64, count: i32) {
    let first = i32::try_from(from).unwrap();
    let records = client::record_batch(-1, first..first + count, &[b'.'; 100]);
    let mut request = client::produce_records(-1, records);
    request.topic_data[0].partition_data[0].index = partition;
    assert_eq!(client::outcome(&client.call(&request).await).base_offset, from);
}

/// Produces to a partition. Returns how many records it has.
async fn fill(broker: SocketAddr, partition: i32, timer: Timer, end: Instant) -> (i32, i64) {
    let (mut client, mut next) = (Client::connect(broker).await, 0);
    while Instant::now() < end {
        append(&mut client, partition, next, 5).await;
        next += 5;
        let _ = timer.sleep(Duration::from_millis(1)).await;
    }
    (partition, next)
}

/// Polls for the next records of some partitions, and checks them: their times are their numbers.
async fn poll(client: &mut Client, next: &mut Ends, max_wait_ms: i32) {
    let mut request = client::fetch(&next.keys().copied().collect::<Vec<_>>(), 1, max_wait_ms);
    for partition in &mut request.topics[0].partitions {
        partition.fetch_offset = next[&partition.partition];
    }
    for data in client::data(&client.call(&request).await) {
        assert_eq!(data.error_code, 0);
        let next = next.get_mut(&data.partition_index).unwrap();
        let batches = RecordBatchDecoder::decode_all(&mut data.records.clone().unwrap()).unwrap();
        for record in batches.iter().flat_map(|batch| &batch.records) {
            assert_eq!((record.offset, record.timestamp), (*next, *next));
            *next += 1;
        }
    }
}

/// Lets polls of the idle partition wait. Returns how long each record took from its producer until
/// both clients had their answers.
async fn wait(broker: SocketAddr, timer: Timer, end: Instant) -> Vec<Duration> {
    let (mut reader, mut producer) = (Client::connect(broker).await, Client::connect(broker).await);
    let (mut next, mut took) = (Ends::from([(IDLE, 0)]), Vec::new());
    while Instant::now() < end {
        let number = next[&IDLE];
        let appending = async {
            let _ = timer.sleep(Duration::from_millis(20)).await;
            let began = Instant::now();
            append(&mut producer, IDLE, number, 1).await;
            began
        };
        let ((), began) = join(poll(&mut reader, &mut next, i32::MAX), appending).await;
        took.push(began.elapsed());
    }
    took
}

/// Joins the group and reads its partitions up to their ends; from the beginning after a rebalance.
async fn consume(broker: SocketAddr, goal: watch::Receiver<Option<Ends>>) -> Ends {
    let (mut member, mut reader) = (Client::connect(broker).await, Client::connect(broker).await);
    let mut id = StrBytes::default();
    loop {
        let joined = member.call(&client::join(&id)).await;
        id = joined.member_id;
        let shares = joined.members.iter().enumerate().map(|(index, each)| {
            let partitions = (0..PARTITIONS - 1).skip(index).step_by(joined.members.len());
            SyncGroupRequestAssignment::default()
                .with_member_id(each.member_id.clone())
                .with_assignment(partitions.collect())
        });
        let sync = client::sync(&id, joined.generation_id).with_assignments(shares.collect());
        let synced = member.call(&sync).await;
        let mut next: Ends = synced.assignment.iter().map(|&at| (at.into(), 0)).collect();
        let beat = HeartbeatRequest::default().with_group_id(client::group());
        let beat = beat.with_member_id(id.clone()).with_generation_id(joined.generation_id);
        while member.call(&beat).await.error_code == 0 {
            poll(&mut reader, &mut next, 500).await;
            let is_there = |ends: &Ends| next.iter().all(|(at, end)| ends[at] == *end);
            if goal.borrow().as_ref().is_some_and(is_there) {
                return next;
            }
        }
    }
}
