//! What operators ask of the store. The bounds hold for the server too.

use super::{PostgresStore, sql};
use crate::{
    error::StoreResult,
    inspect::{Inspect, WorkerLease},
    record::Name,
    store::WorkerId,
    time::WallTime,
};

fn most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl PostgresStore {
    fn number(&self, sql: &str, parameters: super::Parameters<'_>) -> StoreResult<usize> {
        let rows = self.shared.reader.run(|session| session.query(sql, parameters))?;
        Ok(usize::try_from(rows[0].get::<_, i64>(0)).unwrap_or(0))
    }
}

impl Inspect for PostgresStore {
    fn count_live(
        &self,
        from: WallTime,
        until: WallTime,
        queue: Option<&Name>,
        limit: usize,
    ) -> StoreResult<usize> {
        let (from, until) = (from.to_system_time(), until.to_system_time());
        let queue = queue.map(Name::as_str);
        self.number(sql::COUNT_LIVE, &[&from, &until, &most(limit), &queue])
    }

    fn count_dead(&self, limit: usize) -> StoreResult<usize> {
        self.number(sql::COUNT_DEAD, &[&most(limit)])
    }

    fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        let limit = most(limit);
        let rows = self.shared.reader.run(|session| session.query(sql::LEASES, &[&limit]))?;
        let lease = |row: &tokio_postgres::Row| WorkerLease {
            worker: WorkerId(row.get::<_, i64>(0).cast_unsigned()),
            name: row.get(1),
            until: WallTime::now_of(row.get(2)),
            held: row.get::<_, i64>(3).cast_unsigned(),
            delivering: row.get::<_, i64>(4).cast_unsigned(),
        };
        Ok(Some(rows.iter().map(lease).collect()))
    }
}
