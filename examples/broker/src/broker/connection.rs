//! A connection: handles requests as they arrive, and answers them in order.
//!
//! One half reads and the other writes. Between them is a queue of replies, some of which are not
//! ready yet. When the client disconnects, the queue is dropped, and with it the waiting requests.
//! While the queue is full, nothing is read, and a disconnect shows only when an answer is written.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
};

use super::{Broker, Ends, Reply, frame, refusal::Refusal};

/// Maximum number of unanswered requests of a connection. At this number, the broker stops reading
/// it.
const MAX_UNANSWERED: usize = 64;

/// Maximum bytes of answers of a connection that are ready and not written. Above this, the broker
/// stops reading it. Answers to fetches do not count, as each is made just before it is written.
const MAX_READY_BYTES: usize = 1 << 20;

/// Short requests come in with one call of the system. Longer ones do not go through this buffer.
const READ_AHEAD_BYTES: usize = 512;

/// How the reading half has ended.
enum End {
    /// The client has disconnected, or the broker disconnects it.
    Closed,
    /// The broker is closing, and answers the requests that it has read.
    Closing,
}

/// A reply in the queue, and its share of the bytes that may be ready.
type Queued = (Reply, Option<OwnedSemaphorePermit>);

/// Serves a connection until one side closes it.
pub(super) async fn serve(stream: TcpStream, broker: Arc<Broker>, closing: watch::Receiver<bool>) {
    broker.counts.update(|counts| counts.connections += 1);
    // A closed connection ends by itself.
    let _ = converse(stream, &broker, closing).await;
    broker.counts.update(|counts| counts.connections -= 1);
}

async fn converse(
    stream: TcpStream,
    broker: &Broker,
    closing: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let ends = Ends { host: stream.local_addr()?, peer: stream.peer_addr()? };
    let (read, write) = stream.into_split();
    let (replies, queue) = mpsc::channel(MAX_UNANSWERED);
    let reader = receive(read, broker, ends, replies, closing);
    let writer = answer(write, queue);
    tokio::pin!(reader, writer);
    tokio::select! {
        end = &mut reader => match end {
            End::Closed => Ok(()),
            End::Closing => writer.await,
        },
        end = &mut writer => end,
    }
}

async fn receive(
    from: OwnedReadHalf,
    broker: &Broker,
    ends: Ends,
    replies: mpsc::Sender<Queued>,
    mut closing: watch::Receiver<bool>,
) -> End {
    let mut from = BufReader::with_capacity(READ_AHEAD_BYTES, from);
    let ready = Arc::new(Semaphore::new(MAX_READY_BYTES));
    loop {
        let request = async {
            // An idle connection waits here.
            let Ok(first) = from.read_u8().await else { return Ok(None) };
            let handle = |frame| broker.handle(frame, ends);
            let reply = frame::read(&mut from, first, &broker.incoming, handle);
            let reply = broker.incoming_timer.timeout(broker.config.max_incoming_time, reply);
            reply.await.unwrap_or(Err(Refusal::Slow)).map(Some)
        };
        let reply = tokio::select! {
            biased;
            _ = closing.wait_for(|&is_closing| is_closing) => return End::Closing,
            reply = request => reply,
        };
        let reply = match reply {
            Ok(None) => return End::Closed,
            Ok(Some(reply)) => reply,
            Err(refusal) => {
                broker.counts.update(|counts| counts.rejected += 1);
                broker.refusals.print(refusal, format_args!("closed {}", ends.peer));
                return End::Closed;
            }
        };
        let ready_bytes = if let Reply::Now(frame) = &reply { frame.len() } else { 0 };
        let ready_bytes = u32::try_from(ready_bytes.min(MAX_READY_BYTES)).unwrap_or(u32::MAX);
        // Waits until the queue may take a ready reply of this length.
        let share = Arc::clone(&ready).acquire_many_owned(ready_bytes).await.ok();
        if replies.send((reply, share)).await.is_err() {
            return End::Closed;
        }
    }
}

/// Writes replies, each as soon as it is ready, until the queue has ended.
async fn answer(mut to: OwnedWriteHalf, mut queue: mpsc::Receiver<Queued>) -> io::Result<()> {
    while let Some((reply, _share)) = queue.recv().await {
        let frame = match reply {
            Reply::Nothing => None,
            Reply::Now(frame) => Some(frame),
            Reply::Later(frame) => Some(frame.await.ok_or(io::ErrorKind::InvalidData)?),
        };
        if let Some(frame) = frame {
            to.write_all(&frame).await?;
        }
    }
    to.shutdown().await
}
