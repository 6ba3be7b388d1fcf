//! A proxy before a server, which cuts a connection at a chosen message.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Before the server gets the message.
    Request,
    /// After the server has answered it, and before the client gets the answer.
    Answer,
    /// Before the client gets the message, which is an answer of the server.
    Row,
    /// Before the server gets the message. No byte passes any more, and no side hears of that.
    Power,
}

/// The text that the message contains, and where to cut.
type Armed = Arc<Mutex<Option<(&'static str, Cut)>>>;

pub(crate) struct Proxy {
    parameters: String,
    armed: Armed,
    forgotten: Arc<AtomicUsize>,
}

impl Proxy {
    /// Listens on a free port. Its threads end with the process.
    pub(crate) fn start(parameters: &str) -> Self {
        let (_, rest) = parameters.split_once("port=").expect("a port");
        let server = rest.split(' ').next().unwrap_or_default().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port().to_string();
        let parameters = parameters.replacen(&server, &port, 1);
        let server: u16 = server.parse().expect("a port");
        let armed = Armed::default();
        let (cuts, forgotten) = (Arc::clone(&armed), Arc::<AtomicUsize>::default());
        let times = Arc::clone(&forgotten);
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = TcpStream::connect(("127.0.0.1", server)).expect("connect");
                serve(client.expect("accept"), server, &cuts, &times);
            }
        });
        Self { parameters, armed, forgotten }
    }

    /// Returns the parameters of a connection through the proxy.
    pub(crate) fn parameters(&self) -> &str {
        &self.parameters
    }

    /// Cuts the connection of the next message that contains a text.
    pub(crate) fn arm(&self, text: &'static str, cut: Cut) {
        *self.armed.lock().expect("not poisoned") = Some((text, cut));
    }

    /// Passes no more bytes of the connections that are open, and takes them as before. Others
    /// work.
    pub(crate) fn forget(&self) {
        self.forgotten.fetch_add(1, SeqCst);
    }

    /// Returns whether the cut has been made.
    pub(crate) fn has_cut(&self) -> bool {
        self.armed.lock().expect("not poisoned").is_none()
    }
}

fn serve(client: TcpStream, server: TcpStream, armed: &Armed, forgotten: &Arc<AtomicUsize>) {
    let copy = |stream: &TcpStream| stream.try_clone().expect("a handle");
    let is_cut = Arc::new(AtomicBool::new(false));
    let (forgotten, before) = (Arc::clone(forgotten), forgotten.load(SeqCst));
    let stay = move || {
        while forgotten.load(SeqCst) != before {
            thread::park();
        }
    };
    let stays = stay.clone();
    let (from, to, cuts) = (copy(&client), copy(&server), Arc::clone(&is_cut));
    let (requests, answers) = (Arc::clone(armed), Arc::clone(armed));
    thread::spawn(move || {
        pass(from, to, |bytes| {
            stays();
            let cut = take(&requests, bytes, false);
            cuts.fetch_or(cut.is_some(), SeqCst);
            cut.is_none_or(|cut| cut == Cut::Answer)
        });
    });
    // The bytes after the cut are the answer.
    thread::spawn(move || {
        pass(server, client, |bytes| {
            stay();
            !is_cut.load(SeqCst) && take(&answers, bytes, true).is_none()
        });
    });
}

/// Takes the cut that waits for a message such as this one.
fn take(armed: &Armed, bytes: &[u8], is_answer: bool) -> Option<Cut> {
    let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    let mut armed = armed.lock().expect("not poisoned");
    let taken = armed.take_if(|(text, cut)| (*cut == Cut::Row) == is_answer && has(text));
    while let Some((_, Cut::Power)) = taken {
        // All others wait for the lock.
        thread::park();
    }
    taken.map(|(_, cut)| cut)
}

/// Passes bytes on until one side ends, or `may_pass` says that the connection is cut.
fn pass(mut from: TcpStream, mut to: TcpStream, mut may_pass: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !may_pass(&buffer[..count]) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
