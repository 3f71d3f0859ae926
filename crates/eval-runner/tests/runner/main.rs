//! The real program with a stand-in for the harness, recorded answers and a server: what it writes, how it fails, and
//! how it is stopped. Every process that a test starts ends with it.

#![cfg(test)]

mod faults;
mod pairs;
mod scene;
mod server;
mod sides;
mod size;
mod stops;
