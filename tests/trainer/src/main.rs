//! The program `swift`, for images of tests: see the library, which tests of other crates link.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    fake_swift::main()
}
