//! The guide shows the code as it is.

use std::{fs, path::Path};

use crate::prelude::*;

#[test]
fn every_piece_of_code_in_the_guide_is_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("../../docs/broker.md")).unwrap();
    let folders = ["src/broker", "src/broker/group"].map(|folder| root.join(folder));
    let entries = folders.into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let sources: Vec<_> = paths.map(|path| normal(&fs::read_to_string(path).unwrap())).collect();
    let pieces: Vec<_> = guide.split("```rust\n").skip(1).collect();
    assert!(pieces.len() >= 4, "the guide shows hardly any code");
    for piece in pieces {
        let piece = normal(piece.split_once("```").unwrap().0);
        let is_found = sources.iter().any(|source| source.contains(&piece));
        assert!(is_found, "not in the sources:\n{piece}");
    }
}

#[tokio::test]
async fn the_guide_names_the_versions_on_offer() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/broker.md");
    let guide = fs::read_to_string(guide).unwrap();
    let server = system_broker().await;
    let offered =
        Client::connect(server.address()).await.call(&ApiVersionsRequest::default()).await;
    for ApiVersion { api_key, min_version, max_version, .. } in offered.api_keys {
        let row = format!("| {:?} | {min_version} to {max_version} |", ApiKey::try_from(api_key));
        let row = row.replace("Ok(", "").replace(')', "");
        assert!(guide.contains(&row), "{row}");
    }
}

/// The text without indentation.
fn normal(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
