//! What operators ask of the store. The bounds hold for the server too.

use super::{PostgresStore, sql};
use crate::{
    error::StoreResult,
    inspect::{Inspect, WorkerLease},
    store::{Query, Store, WorkerId},
    time::WallTime,
};

impl Inspect for PostgresStore {
    fn count_up_to(&self, query: &Query, limit: usize) -> StoreResult<usize> {
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = match query {
            Query::Times { from, until, after: None } => {
                let (from, until) = (from.to_system_time(), until.to_system_time());
                let parameters: super::Parameters<'_> = &[&from, &until, &most];
                self.shared.reader.run(|session| session.query(sql::COUNT_TIMES, parameters))
            }
            Query::Dead { after: None } => {
                self.shared.reader.run(|session| session.query(sql::COUNT_DEAD, &[&most]))
            }
            _ => return Ok(self.list(query, limit)?.len()),
        }?;
        Ok(usize::try_from(rows[0].get::<_, i64>(0)).unwrap_or(0))
    }

    fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.shared.reader.run(|session| session.query(sql::LEASES, &[&limit]))?;
        let lease = |row: &postgres::Row| WorkerLease {
            worker: WorkerId(row.get::<_, i64>(0).cast_unsigned()),
            name: row.get(1),
            until: WallTime::now_of(row.get(2)),
            held: row.get::<_, i64>(3).cast_unsigned(),
            delivering: row.get::<_, i64>(4).cast_unsigned(),
        };
        Ok(Some(rows.iter().map(lease).collect()))
    }
}
