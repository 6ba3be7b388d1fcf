//! The store that the arguments name.

use std::{fs, path::Path, sync::Arc};

use delaywheel_durable::{NoTls, PostgresStore, SqliteStore, Store, StoreError, StoreErrorReason};

use crate::Failure;

pub(crate) struct Target {
    kind: Kind,
    pub(crate) schema: String,
}

enum Kind {
    Postgres(String),
    Sqlite(String),
}

pub(crate) fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}

impl Target {
    pub(crate) fn new(store: String, schema: String) -> Self {
        let is_url = ["postgres://", "postgresql://"].iter().any(|url| store.starts_with(url));
        let kind = if is_url {
            Kind::Postgres(store)
        } else {
            Kind::Sqlite(store.strip_prefix("sqlite:").unwrap_or(&store).to_owned())
        };
        Self { kind, schema }
    }

    /// Opens the store, to read it or to change it: then a SQLite file must not be in use.
    pub(crate) fn open(&self, is_read: bool) -> Result<Arc<dyn Store>, Failure> {
        Ok(match &self.kind {
            Kind::Postgres(url) => {
                Arc::new(PostgresStore::connect_blocking(url, &self.schema, NoTls)?)
            }
            Kind::Sqlite(_) => Arc::new(self.sqlite(is_read)?),
        })
    }

    pub(crate) fn sqlite(&self, is_read: bool) -> Result<SqliteStore, Failure> {
        let path = self.file()?;
        // Unlike `open`, this does not create the file.
        let store = SqliteStore::open_read_only(path)?;
        Ok(if is_read { store } else { SqliteStore::open(path)? })
    }

    pub(crate) fn file(&self) -> Result<&Path, Failure> {
        match &self.kind {
            Kind::Sqlite(path) => Ok(Path::new(path)),
            Kind::Postgres(_) => usage("this command is for SQLite stores"),
        }
    }

    pub(crate) fn migrate(&self) -> Result<(), Failure> {
        match &self.kind {
            Kind::Postgres(url) => Ok(PostgresStore::migrate_blocking(url, &self.schema, NoTls)?),
            Kind::Sqlite(_) => usage("this command is for PostgreSQL stores"),
        }
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
        writeln!(io::stderr(), "serving http://{}", listener.local_addr()?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let interrupt = async {
            // Without a handler, an interrupt ends the process, which loses nothing.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        runtime.block_on(page.serve(listener, interrupt)).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Failure::Usage(error.to_string()),
            _ => error.into(),
        })
    }
}

pub(crate) fn size(path: &Path) -> Result<u64, Failure> {
    let error = |error| StoreError::with_source(StoreErrorReason::Other, error);
    Ok(fs::metadata(path).map_err(error)?.len())
}
