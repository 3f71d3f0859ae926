//! `cargo xtask docs`: writes the book as HTML. `tests/manual` does it, because the library for books is large.

use crate::steps::{cargo, succeed, workspace};

#[expect(clippy::print_stdout, reason = "this is the output of the command")]
pub(crate) fn run() -> anyhow::Result<()> {
    let folder = workspace().join("target/book");
    let mut build = cargo(["run", "--locked", "--package", "manual", "--", "build"]);
    succeed(build.arg(&folder))?;
    println!("{}", folder.join("index.html").display());
    Ok(())
}
