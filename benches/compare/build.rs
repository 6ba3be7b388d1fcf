//! Tells the programs which compiler they were built with, and for what: counts of instructions
//! hold for one compiler and target only.

use std::{env, error::Error, process::Command};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var_os("RUSTC").ok_or("cargo sets RUSTC")?;
    let version = String::from_utf8(Command::new(rustc).arg("--version").output()?.stdout)?;
    println!("cargo::rustc-env=COMPARE_RUSTC={}", version.trim());
    println!("cargo::rustc-env=COMPARE_TARGET={}", env::var("TARGET")?);
    Ok(())
}
