//! Attempts: where one is, why one failed, and what follows. Pure.

pub(crate) mod avoid;
pub(crate) mod clock;
pub(crate) mod failure;
pub(crate) mod idle;
pub(crate) mod retry;
pub(crate) mod stage;
