//! The local cluster: fault scripts, processes and cleanup, which other tests rely on.

mod controllers;
mod existing;
mod fates;
mod nodes;
mod processes;
