//! The store that the arguments name.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use delaywheel_durable::{
    NoTls, PostgresStore, SqliteStore, Store, StoreError, StoreErrorReason, causes,
};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Config, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::Failure;

pub(crate) enum Target {
    /// With TLS only if the parameters require it: many servers that offer TLS have a certificate
    /// that the program cannot check.
    Postgres {
        url: String,
        schema: String,
        tls: Option<MakeRustlsConnect>,
    },
    Sqlite(PathBuf),
}

pub(crate) fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}

/// Returns a connector that trusts the certificates of the machine, or those in `SSL_CERT_FILE`.
fn tls() -> Result<MakeRustlsConnect, Failure> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(found.certs).0 == 0 {
        let errors = found.errors.iter().map(|error| format!(": {error}"));
        return usage(&format!("found no certificate to trust{}", errors.collect::<String>()));
    }
    // Without this choice, rustls panics if the crates of a build enable two providers.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.or_else(|error| usage(&causes(&error)))?;
    Ok(MakeRustlsConnect::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

impl Target {
    pub(crate) fn new(store: String, schema: String) -> Result<Self, Failure> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|url| store.starts_with(url));
        let is_word =
            |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let has_parameters = store.split_once('=').is_some_and(|(name, _)| is_word(name.trim()));
        if !is_url && !has_parameters {
            return Ok(Self::Sqlite(store.strip_prefix("sqlite:").unwrap_or(&store).into()));
        }
        // Not taken for a path, which an error would print with its password.
        let config: Config = store.parse().or_else(|error| usage(&causes(&error)))?;
        let tls = (config.get_ssl_mode() == SslMode::Require).then(tls).transpose()?;
        Ok(Self::Postgres { url: store, schema, tls })
    }

    /// Opens the store, to read it or to change it: then a SQLite file must not be in use.
    pub(crate) fn open(&self, is_read: bool) -> Result<Arc<dyn Store>, Failure> {
        Ok(match self {
            Self::Postgres { url, schema, tls } => Arc::new(match tls.clone() {
                Some(tls) => PostgresStore::connect_blocking(url, schema, tls)?,
                None => PostgresStore::connect_blocking(url, schema, NoTls)?,
            }),
            Self::Sqlite(_) => Arc::new(self.sqlite(is_read)?),
        })
    }

    pub(crate) fn sqlite(&self, is_read: bool) -> Result<SqliteStore, Failure> {
        let (path, size) = (self.file()?, self.size()?);
        if is_read {
            return Ok(SqliteStore::open_read_only(path)?);
        }
        // `open` would make a store of a file that is missing or empty, such as that of the lock.
        if size == 0 {
            return Err(StoreError::new(StoreErrorReason::Corrupt).into());
        }
        Ok(SqliteStore::open(path)?)
    }

    pub(crate) fn size(&self) -> Result<u64, Failure> {
        let path = self.file()?;
        Ok(path.metadata().map_err(|error| Failure::File(path.to_owned(), error))?.len())
    }

    fn file(&self) -> Result<&Path, Failure> {
        match self {
            Self::Sqlite(path) => Ok(path),
            Self::Postgres { .. } => usage("this command is for SQLite stores"),
        }
    }

    pub(crate) fn migrate(&self) -> Result<(), Failure> {
        match self {
            Self::Postgres { url, schema, tls } => match tls.clone() {
                Some(tls) => PostgresStore::migrate_blocking(url, schema, tls)?,
                None => PostgresStore::migrate_blocking(url, schema, NoTls)?,
            },
            Self::Sqlite(_) => usage("this command is for PostgreSQL stores")?,
        }
        Ok(())
    }

    /// Serves the page until the program is interrupted.
    #[cfg(feature = "page")]
    pub(crate) fn serve(&self, serve: crate::args::Serve) -> Result<(), Failure> {
        use std::io::{self, Write};
        let store = self.open(!serve.allow_changes)?;
        let listener = std::net::TcpListener::bind(serve.listen)?;
        let mut page = delaywheel_durable::Page::new(store).title(serve.title);
        if serve.allow_changes {
            page = page.allow_changes();
        }
        if let Some(token) = serve.token {
            page = page.token(token);
        }
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let interrupt = async move {
            drop(writeln!(io::stderr(), "serving http://{address}"));
            // Without a handler, an interrupt ends the process, which loses nothing.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let served = runtime.block_on(page.serve(listener, interrupt));
        // A request may wait for the store.
        runtime.shutdown_background();
        served.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Failure::Usage(error.to_string()),
            _ => error.into(),
        })
    }
}
