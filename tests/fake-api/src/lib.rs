//! An API server for tests and benches, over plain HTTP on loopback: one server and one wire format, and two sources of
//! what it answers. [`ScriptedApi`] stores objects and follows a script of faults; [`GeneratedApi`] generates as many
//! objects as a bench asks for.

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
