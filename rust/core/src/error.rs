//! The one error of this crate: wrong input. "Nothing fits" is an answer, not an error.

/// What is wrong with an input: where, what, and how to cure it.
///
/// ```
/// let e = autopar_core::Error::new("workload.global_batch_size", "must be positive, found 0", "Give at least 1.");
/// assert_eq!(e.to_string(), "workload.global_batch_size: must be positive, found 0. Give at least 1.");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}. {hint}")]
pub struct Error {
    /// Where: the document's key, as `cluster.groups[1].devices`.
    pub path: String,
    /// What is wrong, with what was found. No full stop at its end.
    pub what: String,
    /// The cure: one sentence.
    pub hint: String,
    /// The fields that a rule is about, most telling first; empty where `path` says it.
    pub about: Vec<String>,
}

impl Error {
    /// An error at `path`.
    pub fn new(path: impl Into<String>, what: impl Into<String>, hint: impl Into<String>) -> Error {
        let about = Vec::new();
        Error { path: path.into(), what: what.into(), hint: hint.into(), about }
    }

    /// The same error of a rule between several fields, as `plan.tp` and `model.heads`.
    pub fn about(mut self, fields: &[&str]) -> Error {
        self.about = fields.iter().map(|&field| field.to_owned()).collect();
        self
    }

    /// The same error one level further out: `groups[1]` before `chip.name` gives `groups[1].chip.name`.
    pub fn under(mut self, outer: &str) -> Error {
        self.path =
            if self.path.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.path) };
        self
    }
}

/// Passes when `ok` holds; otherwise the error says where, what and how to cure it.
pub(crate) fn require(
    ok: bool,
    path: &str,
    what: impl FnOnce() -> String,
    hint: &str,
) -> Result<(), Error> {
    if ok {
        Ok(())
    } else {
        Err(Error::new(path, what(), hint))
    }
}
