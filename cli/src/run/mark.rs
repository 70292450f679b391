//! The variable by which a guard finds the processes of its job wherever they are.
//!
//! A run inside a job appends its mark to those that it inherited, so the guard of each run around a process finds it.

use std::ffi::OsString;

/// The name of the variable.
pub(super) const MARKS: &str = "LEASEHOLD_JOB";

/// Separates the marks of nested runs. A mark has digits and a hyphen.
const SEPARATOR: &str = ",";

/// The marks of a job with this mark, whose tool has inherited `outer`.
pub(super) fn appended(outer: Option<OsString>, mark: &str) -> OsString {
    let mut marks = outer.unwrap_or_default();
    if !marks.is_empty() {
        marks.push(SEPARATOR);
    }
    marks.push(mark);
    marks
}

/// Whether a process with these marks belongs to the job with this mark, or to a run inside that job.
pub(super) fn is_among(marks: &[u8], mark: &str) -> bool {
    marks.split(|byte| SEPARATOR.as_bytes().contains(byte)).any(|one| one == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn a_run_inside_a_job_has_the_marks_of_both() {
        let outer = appended(None, "17-42");
        assert_eq!(appended(Some(OsString::new()), "17-42"), outer);
        let inner = appended(Some(outer.clone()), "170-43");
        assert!(is_among(outer.as_bytes(), "17-42") && !is_among(outer.as_bytes(), "170-43"));
        assert!(is_among(inner.as_bytes(), "17-42") && is_among(inner.as_bytes(), "170-43"));
    }

    #[test]
    fn a_part_of_a_mark_is_another_mark() {
        for marks in ["", ",", "17-4", "17-421", "117-42", "17-42 ", "17-42;170-43"] {
            assert!(!is_among(marks.as_bytes(), "17-42"), "{marks:?}");
        }
    }

    #[test]
    fn the_value_of_another_program_is_kept() {
        let outer = OsStr::from_bytes(b"\xff x");
        let marks = appended(Some(outer.to_owned()), "17-42");
        assert_eq!(marks.as_bytes(), b"\xff x,17-42");
        assert!(is_among(marks.as_bytes(), "17-42"));
    }
}
