//! Fake API servers for tests and benches, over plain HTTP on loopback. [`ScriptedApi`] stores objects and follows a script
//! of faults; [`GeneratedApi`] generates objects for benches.

mod answer;
mod call;
mod generated;
mod scripted;
mod server;
mod store;
mod wire;

pub use answer::{Answer, End, Gate};
pub use call::{Call, Verb};
pub use generated::{GeneratedApi, Object};
pub use scripted::{On, PATIENCE, ScriptedApi};
