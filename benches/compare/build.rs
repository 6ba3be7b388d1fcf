//! Tells the programs which compiler they were built with, and for what: counts of instructions
//! hold for one compiler and target only. And of which versions the peers are, without which a
//! figure cannot be had again.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// Those whose direct dependencies make a difference to what is measured.
const MEASURED: [&str; 2] = ["delaywheel", "delaywheel-compare"];

/// What cargo has settled on.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// Names, each with its version if several are there.
    #[serde(default)]
    dependencies: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let lock = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("Cargo.lock");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", lock.display());
    let rustc = env::var_os("RUSTC").ok_or("cargo sets RUSTC")?;
    let version = String::from_utf8(Command::new(rustc).arg("--version").output()?.stdout)?;
    println!("cargo::rustc-env=COMPARE_RUSTC={}", version.trim());
    println!("cargo::rustc-env=COMPARE_TARGET={}", env::var("TARGET")?);
    let lock = toml::from_str(&fs::read_to_string(lock)?)?;
    let versions = versions(&lock);
    let lines: Vec<_> =
        versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("versions"), lines.join("\n"))?;
    Ok(())
}

/// The version of each direct dependency.
fn versions(lock: &Lock) -> BTreeMap<&str, &str> {
    let packages =
        || lock.package.iter().map(|package| (package.name.as_str(), package.version.as_str()));
    let measured = lock.package.iter().filter(|package| MEASURED.contains(&package.name.as_str()));
    let named = measured.flat_map(|package| &package.dependencies).filter_map(|named| {
        let mut words = named.split_whitespace();
        let (name, version) = (words.next()?, words.next());
        packages().find(|known| known.0 == name && version.is_none_or(|version| version == known.1))
    });
    named.filter(|(name, _)| !MEASURED.contains(name)).collect()
}
