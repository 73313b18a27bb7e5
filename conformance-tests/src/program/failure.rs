//! Why the program could not do what was asked.

/// Why the program could not do what was asked. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The command line or a file given on it is wrong.
    #[error("{0}")]
    Usage(String),
    /// What was asked for could not be run.
    #[error("{0}")]
    CouldNotRun(String),
    /// What was compared differs.
    #[error("{0}")]
    Differs(String),
    /// A signal ended the run; the number is the signal's.
    #[error("ended by a signal; what was started or written is gone")]
    Interrupted(u8),
}

impl Failure {
    /// The exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => super::USAGE,
            Self::CouldNotRun(_) => 3,
            Self::Differs(_) => 1,
            // As a shell reports it.
            Self::Interrupted(signal) => 128_u8.saturating_add(*signal),
        }
    }

    /// A file that cannot be read or written.
    pub(crate) fn file(what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::CouldNotRun(format!("cannot {what} {}: {error}", path.display()))
    }

    /// Finds a file that could not be written after all the work, before the work.
    pub(crate) fn unless_writable(path: &std::path::Path) -> Result<(), Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let why = match folder {
            Some(folder) if !folder.is_dir() => format!("there is no folder {}", folder.display()),
            _ if path.is_dir() => "it is a folder".to_owned(),
            _ => return Ok(()),
        };
        Err(Self::CouldNotRun(format!("cannot write {}: {why}", path.display())))
    }
}
