//! The guide shows the code as it is.

use std::{fs, path::Path};

#[test]
fn every_piece_of_code_in_the_guide_is_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("../../docs/broker.md")).unwrap();
    let sources = fs::read_dir(root.join("src/broker")).unwrap();
    let sources: Vec<_> =
        sources.map(|entry| normal(&fs::read_to_string(entry.unwrap().path()).unwrap())).collect();
    let pieces: Vec<_> = guide.split("```rust\n").skip(1).collect();
    assert!(pieces.len() >= 4, "the guide shows hardly any code");
    for piece in pieces {
        let (piece, _) = piece.split_once("```").unwrap();
        let piece = normal(piece);
        assert!(
            sources.iter().any(|source| source.contains(&piece)),
            "not in the sources:\n{piece}"
        );
    }
}

/// The text without indentation.
fn normal(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
