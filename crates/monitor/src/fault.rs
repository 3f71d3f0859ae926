//! Why a load, a restore or a save failed: an exit code for the controller, and a message for users.

use std::fmt;

use api::monitor::ExitCode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: ExitCode,
    pub(crate) message: String,
    /// It stays until the worker or the pods change: more attempts do not help.
    pub(crate) is_lasting: bool,
    /// Of one entry of a storage, beside which the others can be used.
    pub(crate) is_of_entry: bool,
}

impl Fault {
    pub(crate) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), is_lasting: false, is_of_entry: false }
    }

    pub(crate) fn lasting(code: ExitCode, message: impl Into<String>) -> Self {
        Self { is_lasting: true, ..Self::new(code, message) }
    }

    pub(crate) fn of_entry(self) -> Self {
        Self { is_of_entry: true, ..self }
    }

    /// Whether a retry may succeed without a change by the user.
    pub(crate) fn is_transient(&self) -> bool {
        self.code == ExitCode::StoreUnreachable && !self.is_lasting
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code.reason(), self.message)
    }
}
