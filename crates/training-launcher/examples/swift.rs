//! The stand-in for ms-swift that this crate's tests run: cargo builds examples, and no programs of other crates,
//! before it runs tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    fake_swift::main()
}
