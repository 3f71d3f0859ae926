//! The program of the test image, in which it is `swift`: see the library, which tests of other crates link.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    fake_swift::main()
}
