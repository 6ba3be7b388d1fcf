//! The page, by real requests over loopback, and in a browser where there is one.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    thread::JoinHandle,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use delaywheel_durable::{Command as Change, Page};
use tokio::sync::oneshot;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
const TOKEN: &str = "correct-horse-battery";
const SCRIPT: &str = "<script>alert('x')</script>";

fn store(clock: &ManualClock) -> SqliteStore {
    let (store, now) = (SqliteStore::in_memory(), now(clock));
    let schedule = |id: &str, due: WallTime| {
        let new = NewTimeout::new(id, due, b"").expect("valid");
        store.write(now, &[Change::Schedule(new)]).block_on().expect("write");
    };
    store.enter(now, HOUR, Some("node <1>")).block_on().expect("enter");
    let early = now.saturating_sub(3 * HOUR);
    for id in ["order/1", SCRIPT] {
        schedule(id, early);
    }
    let error = format!("<b>{}", "e".repeat(400));
    crate::settle_all(&store, now, now, &Settlement::Dead { error });
    schedule("late", now.saturating_sub(2 * HOUR));
    for (hours, count) in [(0, 9), (3, 1_234), (4, 700), (5, 300), (12, 40), (23, 611), (30, 5)] {
        for number in 0..count {
            schedule(&format!("{hours}/{number}"), now.saturating_add(hours * HOUR + HOUR / 6));
        }
    }
    store
}

struct Served {
    address: SocketAddr,
    store: SqliteStore,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(configure: impl FnOnce(Page) -> Page) -> Self {
        let clock = ManualClock::new();
        clock.advance(HOUR / 3);
        let store = store(&clock);
        let page =
            configure(Page::new(Arc::new(store.clone())).clock(clock).title("Orders & mail"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let until = async { drop(stopped.await) };
            runtime.expect("runtime").block_on(page.serve(listener, until)).expect("serve");
        });
        Self { address, store, stop: Some(stop), thread: Some(thread) }
    }

    fn send(&self, line: &str, headers: &[&str], body: &str) -> (u16, String, String) {
        send(self.address, line, headers, body)
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.send(&format!("GET {path}"), &[], "");
        (status, body)
    }

    fn requeue(&self, headers: &[&str]) -> (u16, String) {
        let (status, head, _) = self.send("POST /requeue", headers, "id=order%2F1");
        (status, head)
    }

    fn own(&self) -> String {
        format!("Origin: http://{}", self.address)
    }

    fn is_dead(&self) -> bool {
        let id = "order/1".parse().expect("valid");
        let record = self.store.get(&id).block_on().expect("get");
        record.is_some_and(|record| record.state == State::Dead)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let result = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || result.is_some_and(|result| result.is_ok()));
    }
}

/// Sends a request, and returns the status, the headers and the body.
fn send(address: SocketAddr, line: &str, headers: &[&str], body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    let own = format!("Host: {address}");
    let length = format!("Content-Length: {}", body.len());
    let mut lines = vec!["Connection: close", &length];
    lines.extend(headers);
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        lines.push(&own);
    }
    if !body.is_empty() {
        lines.push("Content-Type: application/x-www-form-urlencoded");
    }
    let request = format!("{line} HTTP/1.1\r\n{}\r\n\r\n{body}", lines.join("\r\n"));
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("receive");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), head.to_lowercase(), body.to_owned())
}

#[test]
fn the_page_shows_counts_the_plot_dead_timeouts_and_workers_and_escapes_every_text() {
    let served = Served::start(|page| page);
    let (status, head, body) = served.send("GET /", &[], "");
    assert_eq!(status, 200);
    for part in [
        "<title>Orders &amp; mail</title>",
        "At 2000-01-01 00:20:00",
        "<dd>1</dd>",
        "<dd>2 h</dd>",
        "<dd>2,894</dd>",
        r#"<dd class="bad">2</dd>"#,
        "<title>00:00: 9</title>",
        "<title>03:00: 1,234</title>",
        "<title>23:00: 611</title>",
        "<td class=\"id\">order/1</td>",
        "<td>node &lt;1&gt;</td>",
        r#"<td class="time">2000-01-01 01:20:00</td>"#,
        "&lt;script&gt;alert('x')&lt;/script&gt;",
        &format!("&lt;b&gt;{}…", "e".repeat(297)),
    ] {
        assert!(body.contains(part), "{part} in {body}");
    }
    assert_eq!(body.matches("<rect").count(), 24);
    for part in ["/requeue", "late</td>", "<script", "<b>"] {
        assert!(!body.contains(part), "{part} in {body}");
    }
    for header in ["default-src 'none'", "nosniff", "no-store", "frame-ancestors 'none'"] {
        assert!(head.contains(header), "{head}");
    }
    let (status, _, style) = served.send("GET /style.css", &[], "");
    assert!(status == 200 && style.contains("svg rect"));
}

#[test]
fn a_list_of_dead_timeouts_continues_on_the_next_page() {
    let served = Served::start(|page| page);
    let now = now(&ManualClock::new());
    let new = |number| NewTimeout::new(format!("dead/{number}"), now.saturating_sub(HOUR), b"");
    let new = (0..97).map(|number| Change::Schedule(new(number).expect("valid")));
    served.store.write(now, &new.collect::<Vec<_>>()).block_on().expect("write");
    crate::settle_all(&served.store, now, now, &Settlement::Dead { error: String::new() });
    let rows = |body: &str| body.matches(r#"<td class="number">"#).count();
    let first = served.get("/").1;
    // A worker and a queue have two numbers each.
    assert_eq!(rows(&first), 50 + 4);
    let (_, cursor) = first.split_once(r#"name="after" value=""#).expect("there are more");
    let cursor = cursor.split('"').next().expect("it ends").replace('/', "%2F");
    let second = served.get(&format!("/?after={cursor}")).1;
    assert_eq!(rows(&second), 50 + 4);
    assert!(!second.contains(r#"name="after""#) && !second.contains('…'));
}

#[test]
fn changes_need_permission_and_the_origin_of_the_page() {
    let read_only = Served::start(|page| page);
    let served = Served::start(Page::allow_changes);
    for form in ["/requeue", "/pause"] {
        let (line, headers) = (format!("POST {form}"), [&*read_only.own()]);
        assert_eq!(read_only.send(&line, &headers, "id=order%2F1&queue=").0, 403);
        let [shown, hidden] = [&served, &read_only].map(|page| page.get("/").1.contains(form));
        assert!(shown && !hidden);
    }
    let own = served.own();
    for headers in [
        &[][..],
        &["Origin: http://evil.example"],
        &["Origin: null"],
        &[&own, "Sec-Fetch-Site: cross-site"],
        // Without a token, nothing is one.
        &["Authorization: Bearer 0123456789abcdef"],
        &["Sec-Fetch-Site: same-site"],
        // The browser has resolved a name of that site to this machine.
        &["Host: evil.example", "Origin: http://evil.example"],
    ] {
        for line in ["POST /requeue", "POST /pause"] {
            let refused = served.send(line, headers, "id=order%2F1&queue=");
            assert_eq!(refused.0, 403, "{headers:?}");
        }
    }
    assert!(served.is_dead() && read_only.is_dead());
    assert_eq!(served.send("GET /", &["Host: evil.example:80"], "").0, 403);
    for host in ["localhost", "localhost:1", "[::1]", "[::1]:1", "127.0.0.9"] {
        assert_eq!(served.send("GET /", &[&format!("Host: {host}")], "").0, 200, "{host}");
    }
    let (status, head) = served.requeue(&[&own]);
    assert!(status == 303 && head.contains("location: /?notice=requeued"), "{head}");
    assert!(!served.is_dead());
    let (status, head) = served.requeue(&["Sec-Fetch-Site: same-origin"]);
    assert!(status == 303 && head.contains("location: /?notice=not-dead"), "{head}");
    assert!(served.get("/?notice=not-dead").1.contains("not dead any more"));
    assert_eq!(served.send("POST /requeue", &[&own], "id=").0, 400);
    assert_eq!(served.send("POST /requeue", &[&own], &format!("id={}", "x".repeat(20_000))).0, 413);
}

#[test]
fn queues_are_shown_paused_and_resumed() {
    let served = Served::start(Page::allow_changes);
    let pause = |body: &str| {
        let (status, head, _) = served.send("POST /pause", &[&served.own()], body);
        assert!(status != 303 || head.contains("location: /?notice="), "{head}");
        let queues = served.store.queues().block_on().expect("queues");
        let paused = queues.into_iter().filter(|queue| queue.is_paused);
        (status, paused.fold(String::new(), |names, queue| format!("{names}<{}>", queue.name)))
    };
    assert_eq!(pause("queue=a%2Fb"), (303, "<a/b>".to_owned()));
    assert_eq!(pause("queue="), (303, "<><a/b>".to_owned()));
    assert_eq!(pause("queue=a%2Fb&resume="), (303, "<>".to_owned()));
    assert_eq!(pause(&format!("queue={}", "x".repeat(65))).0, 400);
    let body = served.get("/?notice=resumed").1;
    for part in ["The queue is resumed", "(default)</td><td>paused</td>", ">a/b</td><td>-</td>"] {
        assert!(body.contains(part), "{part} in {body}");
    }
}

#[test]
fn a_token_is_needed_as_bearer_or_password() {
    let served = Served::start(|page| page.token(TOKEN).allow_changes());
    let own = served.own();
    let bearer = |token| format!("Authorization: Bearer {token}");
    let basic = |token| format!("Authorization: Basic {}", STANDARD.encode(format!("me:{token}")));
    let (status, head, body) = served.send("GET /", &[], "");
    assert!(status == 401 && head.contains("www-authenticate: basic"), "{head}");
    assert!(!body.contains("order/1"), "{body}");
    let empty = "Authorization: Basic ";
    for wrong in [&bearer("x"), &bearer(&TOKEN[1..]), &basic("x"), &basic(""), empty, "Cookie: a=1"]
    {
        assert_eq!(served.send("GET /", &[wrong], "").0, 401, "{wrong}");
        assert_ne!(served.requeue(&[&own, wrong]).0, 303, "{wrong}");
    }
    assert!(served.is_dead());
    assert_eq!(served.send("GET /", &[&bearer(TOKEN).replace('B', "b")], "").0, 200);
    let password = basic(TOKEN);
    // The name does not matter then, as behind a proxy.
    assert_eq!(served.send("GET /", &[&password, "Host: ops.example"], "").0, 200);
    assert_eq!(served.requeue(&[&password]).0, 403, "another site made the browser send it");
    assert!(served.is_dead());
    // A script has no origin, and no browser sends a `Bearer` by itself.
    assert_eq!(served.requeue(&[&bearer(TOKEN)]).0, 303);
    assert!(!served.is_dead());
}

#[cfg(feature = "cli")]
#[test]
fn the_program_serves_the_page_until_it_is_interrupted() {
    use std::{io::BufRead, process::Stdio};
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
    let in_use = delaywheel_durable::SqliteStore::open(&path).expect("open");
    let start = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_delaywheel-durable"))
            .args(["page", "--listen", "127.0.0.1:0", "--store"])
            .arg(&path)
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    for (arguments, code) in [(&["--token", "short"][..], 2), (&["--allow-changes"], 3)] {
        let ended = start(arguments).wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), errors.contains("serving")), (Some(code), false));
    }
    let serve = |arguments: &[&str]| {
        let mut program = start(arguments);
        let mut line = String::new();
        let mut errors = std::io::BufReader::new(program.stderr.take().expect("piped"));
        errors.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("serving http://").expect("an address");
        let (_, _, body) = send(address.parse().expect("an address"), "GET /", &[], "");
        let interrupt = Command::new("kill").args(["-INT", &program.id().to_string()]).status();
        assert!(interrupt.expect("kill").success());
        assert_eq!(program.wait().expect("it ends").code(), Some(0));
        body
    };
    let body = serve(&["--title", "Mail"]);
    assert!(body.contains("<h1>Mail</h1>") && body.contains("knows its workers"), "{body}");
    assert!(!body.contains("<button"), "{body}");
    drop(in_use);
    assert!(serve(&["--allow-changes"]).contains("<button"));
}

/// `PAGE_SCREENSHOT` names a file that is to keep the picture.
#[test]
fn a_browser_shows_the_page() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut files =
        std::env::split_paths(&folders).flat_map(|dir| names.map(|name| dir.join(name)));
    let Some(browser) = files.find(|file| file.exists()) else {
        writeln!(std::io::stderr(), "Chromium is not installed: no browser has read the page")
            .expect("stderr");
        return;
    };
    let served = Served::start(Page::allow_changes);
    let folder = tempfile::tempdir().expect("folder");
    let kept = std::env::var_os("PAGE_SCREENSHOT").map(PathBuf::from);
    let picture = kept.unwrap_or_else(|| folder.path().join("page.png"));
    let open = |what: &str| {
        let mut command = Command::new("timeout");
        command.arg("120").arg(&browser);
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
            --disable-background-networking --disable-component-update --disable-sync \
            --window-size=1100,1100";
        command.args(flags.split_whitespace());
        command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        let output = command.arg(what).arg(format!("http://{}/", served.address)).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let dom = open("--dump-dom");
    assert_eq!((dom.matches("<rect").count(), dom.matches("<button").count()), (24, 3), "{dom}");
    assert!(dom.contains(">order/1</td>") && !dom.contains("<script"), "{dom}");
    // What an element that is not closed contains would not be drawn.
    assert_eq!(dom.matches("></line><text").count(), 4, "{dom}");
    open(&format!("--screenshot={}", picture.display()));
    let bytes = std::fs::read(&picture).expect("a picture");
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{} bytes", bytes.len());
}
