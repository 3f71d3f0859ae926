//! Has no code. Cargo builds a dependency once for each set of its features, and the set follows from the packages that
//! are selected. The packages `xtask` and `tests` depend on this one, so that every selection here has the features of
//! the whole workspace. Commands, programs and tests then share their dependencies. Programs of images do not select it.
//!
//! A test of `xtask` (`steps.rs`) names what is missing in `Cargo.toml` here.
