//! Encrypted connections, with a certificate that the server makes for itself.

use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::*;

/// Makes a key and a certificate for the server, and turns TLS on. Returns the certificate; `None`
/// if the machine has no `openssl`.
fn turn_on(server: &Server) -> Option<Vec<u8>> {
    let mut client = client(server);
    let make = "COPY (SELECT 1) TO PROGRAM 'umask 077; openssl req -x509 -nodes -newkey rsa:2048
        -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1
        -addext basicConstraints=critical,CA:FALSE -days 2
        -keyout server.key -out server.crt 2>/dev/null &&
        openssl x509 -in server.crt -outform der -out server.der'";
    if let Err(error) = client.batch_execute(&make.replace('\n', " ")) {
        server::say(&format!("openssl makes no certificate: the test of TLS did not run: {error}"));
        return None;
    }
    let row = client.query_one("SELECT pg_read_binary_file('server.der')", &[]);
    let certificate = row.expect("certificate").get(0);
    client.batch_execute("ALTER SYSTEM SET ssl = on").expect("settings");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    Some(certificate)
}

fn connector(roots: RootCertStore) -> MakeRustlsConnect {
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    MakeRustlsConnect::new(config)
}

#[test]
fn every_connection_is_encrypted_and_the_certificate_is_checked() {
    let Some(server) = Server::start() else { return };
    let Some(certificate) = turn_on(&server) else { return };
    let parameters = format!("{} sslmode=require application_name=tls", server.parameters());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate)).expect("certificate");
    let connect = || {
        let tls = connector(roots.clone());
        PostgresStore::migrate_blocking(&parameters, "delaywheel", tls.clone())?;
        PostgresStore::connect_blocking(&parameters, "delaywheel", tls)
    };
    // The server reads its settings again at a time of its own.
    until(|| connect().is_ok());
    let (timer, seen) = telling(DurableTimer::builder(connect().expect("connect")));
    deliver(&timer, &seen, "now");
    timer.get("now").wait().expect("get");
    let sql = "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl
        JOIN pg_stat_activity USING (pid) WHERE application_name = 'tls'";
    let row = client(&server).query_one(sql, &[]).expect("query");
    let (all, encrypted): (i64, i64) = (row.get(0), row.get(1));
    assert!(all >= 2, "{all} connections");
    assert_eq!(all, encrypted);
    assert!(timer.finish(LONG).wait().expect("finish"));

    let unknown = PostgresStore::connect_blocking(
        &parameters,
        "delaywheel",
        connector(RootCertStore::empty()),
    );
    assert_eq!(unknown.expect_err("unknown").reason(), StoreErrorReason::Unavailable);
    let plain = PostgresStore::connect_blocking(&parameters, "delaywheel", NoTls)
        .expect_err("it must be encrypted");
    assert_eq!(plain.reason(), StoreErrorReason::Unavailable);
}

#[cfg(feature = "cli")]
#[test]
fn the_program_encrypts_if_it_must_and_checks_the_certificate() {
    let Some(server) = Server::start() else { return };
    let run = |tls: &str, trusted: &std::path::Path| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_delaywheel-durable"));
        program.args(["migrate", "--store", &format!("{} sslmode={tls}", server.parameters())]);
        program.env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
        let output = program.output().expect("it starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let files = tempfile::tempdir().expect("directory");
    let [own, other] = ["own.pem", "other.pem"].map(|name| files.path().join(name));
    std::fs::write(&own, "").expect("file");
    let (code, error) = run("require", &own);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("no certificate"), "{error}");

    let mut client = client(&server);
    for file in [&other, &own] {
        // The server has the second one.
        if turn_on(&server).is_none() {
            return;
        }
        let row = client.query_one("SELECT pg_read_file('server.crt')", &[]).expect("certificate");
        std::fs::write(file, row.get::<_, &str>(0)).expect("file");
    }
    until(|| run("require", &own).0 == Some(0));
    let (code, error) = run("require", &other);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(run("prefer", &other).0, Some(0), "without TLS");
}
