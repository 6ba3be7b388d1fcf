//! The entry point of the fuzzer: bytes as a connection delivers them, down to the records.

use futures::FutureExt;
use kafka_protocol::messages::RequestKind;
use tokio::io::AsyncReadExt;

use super::{
    batch::{Batch, times},
    frame,
    refusal::Refusal,
    request,
};

/// The longest request that this accepts.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Reads frames until they end or one is malformed. Returns how many requests were read.
///
/// # Panics
///
/// If a check of the broker is wrong.
#[must_use]
pub fn take_in(mut bytes: &[u8]) -> usize {
    let memory = frame::Memory::new(MAX_FRAME_BYTES, MAX_FRAME_BYTES);
    let mut count = 0;
    loop {
        let read = async {
            let first = bytes.read_u8().await.map_err(|_| Refusal::Frame)?;
            frame::read(&mut bytes, first, &memory, Ok).await
        };
        let Ok(frame) = read.now_or_never().expect("memory can be read at once") else {
            return count;
        };
        let Ok(header) = request::decode_header(&frame) else { return count };
        let Ok((_, request)) = request::decode(frame, header) else { return count };
        check_records(&request);
        count += 1;
    }
}

fn check_records(request: &RequestKind) {
    let RequestKind::Produce(produce) = request else { return };
    let partitions = produce.topic_data.iter().flat_map(|topic| &topic.partition_data);
    for records in partitions.filter_map(|partition| partition.records.as_ref()) {
        if let Ok(batch) = Batch::check(records) {
            let length = batch.len();
            let placed = batch.place(1);
            assert_eq!(placed.len(), length, "a batch has changed its length");
            assert!(times(&placed).count() <= length, "a record takes some bytes");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_file_of_the_corpus_is_read_or_refused() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/requests");
        let (mut files, mut requests) = (0, 0);
        for entry in fs::read_dir(folder).expect("the corpus is part of the repository") {
            let path = entry.expect("the corpus can be listed").path();
            requests += take_in(&fs::read(&path).expect("a file of the corpus can be read"));
            files += 1;
        }
        assert!(files > 20 && requests > 20, "{requests} requests in {files} files");
    }
}
