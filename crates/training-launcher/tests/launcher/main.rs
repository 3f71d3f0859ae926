//! The real program with a stand-in for ms-swift: how runs end, how they are stopped, resumed and fenced, and what
//! happens to the output. Every process that a test starts ends with it.

#![cfg(test)]

mod ends;
mod fence;
mod gang;
mod install;
mod processes;
mod resume;
mod scene;
mod sources;
mod stops;
mod streams;
