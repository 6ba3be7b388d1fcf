//! A connection: requests are dealt with as they come, and answered in their order.
//!
//! One half reads, the other writes, and between them is a queue of replies, in which some are yet
//! to come. When the client goes away the queue is dropped, and with it what waits.

use std::{io, sync::Arc};

use bytes::BytesMut;
use tokio::{
    io::AsyncWriteExt,
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
};

use super::{Broker, Ends, Reply, frame};

/// Requests of a connection that may be unanswered. Beyond that it is not read.
const MAX_UNANSWERED: usize = 64;

/// How the reading half has ended.
enum End {
    /// The client has gone, or has to.
    Closed,
    /// The broker is closing, and answers what it has taken in.
    Closing,
}

/// Serves a connection until one side closes it.
pub(super) async fn serve(stream: TcpStream, broker: Arc<Broker>, closing: watch::Receiver<bool>) {
    broker.counts.connections.add(1);
    // A connection that is gone already ends by itself.
    let _ = converse(stream, &broker, closing).await;
    broker.counts.connections.subtract(1);
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

/// Reads requests and deals with them.
async fn receive(
    mut from: OwnedReadHalf,
    broker: &Broker,
    ends: Ends,
    replies: mpsc::Sender<Reply>,
    mut closing: watch::Receiver<bool>,
) -> End {
    let mut buffer = BytesMut::new();
    loop {
        let frame = tokio::select! {
            biased;
            _ = closing.wait_for(|&is_closing| is_closing) => return End::Closing,
            frame = frame::read(&mut from, &mut buffer, broker.config.max_frame_bytes) => frame,
        };
        let reply = match frame {
            Ok(None) => return End::Closed,
            Ok(Some(frame)) => broker.handle(frame, ends),
            Err(malformed) => Err(malformed),
        };
        let Ok(reply) = reply else {
            broker.counts.rejected.add(1);
            return End::Closed;
        };
        if replies.send(reply).await.is_err() {
            return End::Closed;
        }
    }
}

/// Writes replies, each when it is there, until no more can come.
async fn answer(mut to: OwnedWriteHalf, mut queue: mpsc::Receiver<Reply>) -> io::Result<()> {
    while let Some(reply) = queue.recv().await {
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
