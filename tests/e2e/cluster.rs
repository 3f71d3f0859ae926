//! The local cluster itself: what other tests rely on when they script a fault or count on a clean end.

mod controllers;
mod existing;
mod fates;
mod nodes;
mod processes;
