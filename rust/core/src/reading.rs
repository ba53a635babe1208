//! A document read: what it lacks or has wrong, said as the rules of its fields say it.

use crate::error::Error;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

/// Characters of a wrong value that are told.
const LONGEST: usize = 60;

/// The document of a `kind` that a JSON text holds.
///
/// # Errors
/// The text is not JSON or not of that kind: the first key at fault, as its rules name it. Those of a problem stand
/// for themselves, those of other documents after the kind.
pub fn read<T: DeserializeOwned>(kind: &str, document: &str) -> Result<T, Error> {
    serde_json::from_str(document).map_err(|error| {
        let mut text = serde_json::Deserializer::from_str(document);
        // Where the value alone is right, what follows it is not: the first reading tells that.
        match serde_path_to_error::deserialize::<_, T>(&mut text) {
            Ok(_) => wrong(kind, &error.to_string()),
            Err(placed) => {
                let places: Vec<_> = placed.path().iter().filter(|&part| told(part)).collect();
                let path = places.iter().fold(String::new(), |path, part| match part {
                    Segment::Seq { .. } => format!("{path}{part}"),
                    _ if path.is_empty() => part.to_string(),
                    _ => format!("{path}.{part}"),
                });
                let path = match (kind.ends_with("problem"), path.as_str()) {
                    (_, "") => kind.to_owned(),
                    (true, _) => path,
                    (false, _) => format!("{kind}.{path}"),
                };
                wrong(&path, &placed.inner().to_string())
            }
        }
    })
}

/// Whether a part of a path names a key or a place.
fn told(part: &Segment) -> bool {
    matches!(part, Segment::Seq { .. } | Segment::Map { .. })
}

/// The error of serde's words, which end with the place in the text.
fn wrong(path: &str, said: &str) -> Error {
    let said = said.rsplit_once(" at line ").map_or(said, |(what, _)| what);
    let between = |text: &str, before: &str, after: &str| {
        text.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).map(str::to_owned)
    };
    if let Some(key) = between(said, "missing field `", "`") {
        return Error::new(format!("{path}.{key}"), "missing key", "Add it.");
    }
    if let Some((key, known)) =
        said.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, "))
    {
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let what = format!("unknown key \"{}\"; the keys are {}", plain(key), known.join(", "));
        return Error::new(holder(path, key), what, "Take it out, or check its spelling.");
    }
    let typed =
        said.strip_prefix("invalid type: ").or_else(|| said.strip_prefix("invalid value: "));
    if let Some((found, expected)) = typed.and_then(|rest| rest.rsplit_once(", expected ")) {
        let what = format!("must be {}, found {}", named(expected), plain(found));
        return Error::new(path, what, "Give one.");
    }
    if let Some((found, known)) =
        said.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        let what = format!("must be {known}, found {found}").replace('`', "\"");
        return Error::new(path, what, "Write one of them in quotes.");
    }
    Error::new(path, said, "Write the document with this version of autopar.")
}

/// The path of what holds a key, where the path may end with it.
fn holder<'a>(path: &'a str, key: &str) -> &'a str {
    path.strip_suffix(key).and_then(|rest| rest.strip_suffix('.')).unwrap_or(path)
}

/// What serde calls a type, in words.
fn named(expected: &str) -> String {
    let most = match expected {
        "u8" => u64::from(u8::MAX),
        "u16" => u64::from(u16::MAX),
        "u32" => u64::from(u32::MAX),
        "u64" | "usize" => u64::MAX,
        _ => {
            return match expected {
                "i8" | "i16" | "i32" | "i64" => "a whole number",
                "f32" | "f64" => "a number",
                "a boolean" => "true or false",
                "a string" => "a text",
                "a sequence" => "a list",
                "a map" => "a table",
                _ if expected.starts_with("struct ") => "a table",
                _ => expected,
            }
            .to_owned()
        }
    };
    format!("a whole number from 0 to {most}")
}

/// What serde found without the name of its type, at most [`LONGEST`] characters of it.
fn plain(found: &str) -> String {
    let value = match found {
        "map" => "a table",
        "sequence" => "a list",
        _ => found.find(['`', '"']).map_or(found, |start| found[start..].trim_matches('`')),
    };
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::workload::Workload;

    fn of_workload(text: &str) -> String {
        read::<Workload>("workload", text).unwrap_err().to_string()
    }

    #[test]
    fn an_error_names_the_key_and_what_it_must_be() {
        for (text, said) in [
            (r#"{"global_batch_size": -1}"#, "workload.global_batch_size: must be a whole number from 0 to 18446744073709551615, found -1. "),
            (r#"{"global_batch_size": "8"}"#, "workload.global_batch_size: must be a whole number from 0 to 18446744073709551615, found \"8\". "),
            (r#"{"global_batch_size": [8]}"#, "found a list. "),
            (r#"{"precision": "fp2"}"#, "workload.precision: must be one of \"bf16\", \"fp16\", \"fp8\", \"fp4\", \"tf32\", \"fp32\", found \"fp2\". "),
            (r#"{"speed": 1}"#, "workload: unknown key \"speed\"; the keys are global_batch_size, "),
            ("{}", "workload.global_batch_size: missing key. "),
            ("3", "workload: must be a table, found 3. "),
            ("{", "workload: EOF while parsing an object. "),
        ] {
            let found = of_workload(text);
            assert!(found.contains(said), "{text}: {found}");
            assert!(!found.contains("line"), "{found}");
        }
    }

    #[test]
    fn what_follows_a_document_is_refused() {
        let found = read::<Vec<f64>>("times", "[0.5] 1").unwrap_err();
        let said = "times: trailing characters. Write the document with this version of autopar.";
        assert_eq!(found.to_string(), said);
    }

    #[test]
    fn a_long_value_is_cut() {
        let text = format!(r#"{{"global_batch_size": "{}"}}"#, "é".repeat(1000));
        assert!(of_workload(&text).len() < 300);
    }
}
