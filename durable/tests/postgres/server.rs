//! A private PostgreSQL server in a temporary directory, on a free port.

use std::{
    fs,
    io::{self, Write},
    net::TcpListener,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Once,
    thread,
    time::Duration,
};

use delaywheel_durable::{NoTls, PostgresStore};
use tempfile::TempDir;

/// A server that ends when it is dropped.
pub(crate) struct Server {
    folder: TempDir,
    programs: PathBuf,
    user: Option<String>,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server. Prints one line and returns `None` if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_in(tempfile::tempdir().expect("folder"))
    }

    /// Starts a server in a folder.
    pub(crate) fn start_in(folder: TempDir) -> Option<Self> {
        let Some(programs) = programs() else {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                say("PostgreSQL is not installed: the tests of its store did not run");
            });
            return None;
        };
        let user = unprivileged_user(folder.path());
        let mut server = Self { folder, programs, user, port: 0 };
        let data = server.data();
        let mut initdb = server.command("initdb");
        initdb.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "-D"]).arg(data);
        assert!(initdb.stdout(Stdio::null()).status().expect("initdb").success());
        server.resume();
        Some(server)
    }

    /// Returns the parameters of a connection.
    pub(crate) fn parameters(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    /// Ends the server as a crash does: the processes are gone, and the log has to be replayed.
    pub(crate) fn crash(&mut self) {
        self.control(&["stop", "-m", "immediate"]);
    }

    /// Starts the server if it has ended, and waits until it is ready; after a crash, on the same
    /// port.
    pub(crate) fn resume(&mut self) {
        let (is_new, log) = (self.port == 0, self.folder.path().join("log"));
        for _ in 0..20 {
            if is_new {
                let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
                self.port = socket.local_addr().expect("an address").port();
            }
            let options = format!("-h 127.0.0.1 -p {} -k ''", self.port);
            let start = ["start", "-w", "-l", log.to_str().expect("UTF-8"), "-o", &options];
            if self.control(&["status"]) || self.control(&start) {
                return;
            }
            // Another test or program has taken the port before the server did.
            thread::sleep(Duration::from_millis(100));
        }
        panic!("the server does not start: {}", self.log());
    }

    /// Calls `pg_ctl`, and returns whether it succeeded.
    fn control(&self, arguments: &[&str]) -> bool {
        let mut command = self.command("pg_ctl");
        command.arg("-s").arg("-D").arg(self.data()).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("pg_ctl").success()
    }

    /// Returns the log of the server.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A program of the server, or another one, which refuses to run as root.
    pub(crate) fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        match &self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
                command.arg("--clear-groups").arg(program).current_dir("/");
                command
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
        let _ = io::stderr().flush();
    }
}

/// Writes a line that is seen also if the test passes, unlike one of `eprintln`.
pub(crate) fn say(text: &str) {
    writeln!(io::stderr(), "{text}").expect("stderr");
}

/// Makes the tables of a schema if it has none, and connects.
pub(crate) fn open(parameters: &str, schema: &str) -> PostgresStore {
    PostgresStore::migrate_blocking(parameters, schema, NoTls).expect("migrate");
    PostgresStore::connect_blocking(parameters, schema, NoTls).expect("connect")
}

/// Finds the newest server that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let mut found: Vec<_> = folders.filter(|folder| folder.join("postgres").exists()).collect();
    found.sort();
    found.pop()
}

/// Returns a user for the server if this process is root's, and gives it the folder.
fn unprivileged_user(folder: &Path) -> Option<String> {
    let id = |arguments: &[&str]| {
        let output = Command::new("id").args(arguments).output().ok()?;
        let id = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(id)
    };
    if id(&["-u"])? != "0" {
        return None;
    }
    let user = ["postgres", "nobody"].into_iter().find_map(|user| id(&["-u", user]))?;
    let number = user.parse().expect("a user id");
    chown(folder, Some(number), None).expect("chown");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("permissions");
    Some(user)
}
