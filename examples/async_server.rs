//! An echo server that closes idle connections:
//! `cargo run -p delaywheel-async-tests --example async_server`.
//!
//! Each connection has one sleep. A message moves its deadline, which is one store in the wheel.
//! The program starts the server, talks to it as a client, and ends when the server has closed the
//! idle connection.

use std::{io, pin::pin, time::Duration};

use delaywheel::{Timer, future::TimeoutError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Time without a message after which the server closes a connection.
const IDLE: Duration = Duration::from_millis(200);

/// Limit of the time to send an answer.
const SEND: Duration = Duration::from_secs(5);

/// Echoes messages until the client closes the connection or is idle for this time.
async fn serve(timer: Timer, mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    let mut idle = pin!(timer.sleep(IDLE));
    loop {
        let length = tokio::select! {
            length = stream.read(&mut buffer) => length?,
            elapsed = &mut idle => {
                elapsed?;
                println!("server: closes an idle connection");
                return Ok(());
            }
        };
        if length == 0 {
            return Ok(());
        }
        timer.timeout(SEND, stream.write_all(&buffer[..length])).await??;
        idle.reset(IDLE);
    }
}

/// Sends a message and waits for the echo.
async fn ask(timer: &Timer, stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut answer = vec![0; message.len()];
    stream.write_all(message).await?;
    match timer.timeout(Duration::from_secs(5), stream.read_exact(&mut answer)).await {
        Ok(read) => read?,
        Err(TimeoutError::Elapsed) => return Err(io::Error::other("the server is too slow")),
        Err(error) => return Err(error.into()),
    };
    assert_eq!(answer, message);
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let timer = Timer::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = timer.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(server.clone(), stream));
        }
    });

    let mut client = TcpStream::connect(address).await?;
    for number in 0..5 {
        ask(&timer, &mut client, format!("message {number}").as_bytes()).await?;
        timer.sleep(IDLE / 4).await?;
    }
    println!("client: got five answers, and waits");
    assert_eq!(client.read(&mut [0; 1]).await?, 0, "the server closes the connection");
    Ok(())
}
