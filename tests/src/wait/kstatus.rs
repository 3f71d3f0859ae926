//! A port of kstatus, by which Flux and other tools wait for objects, and a check that it agrees with the status of the
//! project's kinds.
//!
//! Pure. The original is `pkg/kstatus/status` of sigs.k8s.io/cli-utils; its rules for built-in kinds are omitted.

use serde_json::Value;

/// The result of kstatus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kstatus {
    Terminating,
    InProgress,
    Failed,
    Current,
    /// A field has an unexpected type.
    Unknown,
}

/// Computes the result; the first rule that applies decides.
pub(super) fn kstatus(object: &Value) -> Kstatus {
    let status = &object["status"];
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return Kstatus::Terminating;
    }
    let (observed, generation) = (&status["observedGeneration"], &object["metadata"]["generation"]);
    if !observed.is_null() && !observed.is_i64()
        || !(status["conditions"].is_null() || status["conditions"].is_array())
    {
        return Kstatus::Unknown;
    }
    // The generation is compared only if both fields exist.
    if !observed.is_null() && !generation.is_null() && observed != generation {
        return Kstatus::InProgress;
    }
    // Of Reconciling and Stalled, the first in the list decides.
    for condition in status["conditions"].as_array().into_iter().flatten() {
        match (condition["type"].as_str(), condition["status"].as_str()) {
            (Some("Reconciling"), Some("True")) => return Kstatus::InProgress,
            (Some("Stalled"), Some("True")) => return Kstatus::Failed,
            (_, _) => {}
        }
    }
    match condition(object, "Ready") {
        Some("False" | "Unknown") => Kstatus::InProgress,
        // A kind without the condition, and an object without a status, are current.
        Some(_) | None => Kstatus::Current,
    }
}

/// Panics unless kstatus and the status agree: current if and only if this generation is ready, failed if and only if it is
/// stalled, in progress otherwise. For kinds with the condition `Ready`. A kind without it is current when it is complete, and
/// while it is suspended.
pub(super) fn assert_kstatus(object: &Value) {
    if let Err(contradiction) = consistent(object) {
        panic!("{contradiction}:\n{object:#}");
    }
}

fn consistent(object: &Value) -> Result<(), String> {
    let is_observed = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let is_true = |type_: &str| is_observed && condition(object, type_) == Some("True");
    let (ready, reconciling, stalled) = (is_true("Ready"), is_true("Reconciling"), is_true("Stalled"));
    if reconciling && stalled {
        return Err("it cannot be both Reconciling and Stalled".to_owned());
    }
    for type_ in ["Reconciling", "Stalled"] {
        if condition(object, type_).is_some_and(|status| status != "True") {
            return Err(format!("{type_} must be absent while it is not True"));
        }
    }
    let is_suspended = is_observed && object["spec"]["suspend"] == true && !reconciling;
    let is_done = match kind_ends(object) {
        true => is_suspended || is_true("Complete"),
        false => ready,
    };
    let expected = match (is_done, stalled) {
        _ if !object["metadata"]["deletionTimestamp"].is_null() => Kstatus::Terminating,
        (_, true) => Kstatus::Failed,
        (true, false) => Kstatus::Current,
        (false, false) => Kstatus::InProgress,
    };
    let judged = kstatus(object);
    if judged != expected {
        return Err(format!("kstatus is {judged:?}, but the status means {expected:?}"));
    }
    // An AIDispatcher has `currentPhase` instead, which may be Ready during a rollout, while Ready is False.
    let phase = object["status"]["phase"].as_str();
    let contradicts = match phase {
        Some("Failed") => is_observed && !stalled,
        Some("Ready") => is_observed && !ready,
        Some(_) | None => false,
    };
    if contradicts && judged != Kstatus::Terminating {
        return Err(format!("phase {phase:?} contradicts {judged:?}"));
    }
    Ok(())
}

/// Whether `Complete` or `Failed` ends an object of this kind.
fn kind_ends(object: &Value) -> bool {
    object["kind"] == "ModelEvaluation"
}

/// The status of the condition of this type, if there is one.
fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_)?["status"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Kstatus, assert_kstatus, consistent, kstatus};

    /// An object of generation 2.
    fn object(observed: Value, conditions: &[(&str, &str)]) -> Value {
        let conditions: Vec<Value> =
            conditions.iter().map(|(type_, status)| json!({"type": type_, "status": status})).collect();
        let mut object = json!({"metadata": {"generation": 2}, "status": {"conditions": conditions}});
        if !observed.is_null() {
            object["status"]["observedGeneration"] = observed;
        }
        object
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        for (observed, conditions, expected) in [
            (json!(1), &[("Ready", "True"), ("Stalled", "True")][..], Kstatus::InProgress),
            (json!(3), &[("Ready", "True")], Kstatus::InProgress),
            (json!(2), &[("Reconciling", "True"), ("Stalled", "True")], Kstatus::InProgress),
            (json!(2), &[("Stalled", "True"), ("Reconciling", "True")], Kstatus::Failed),
            (json!(2), &[("Stalled", "True"), ("Ready", "True")], Kstatus::Failed),
            (json!(2), &[("Stalled", "False"), ("Ready", "True")], Kstatus::Current),
            (json!(2), &[("Ready", "True")], Kstatus::Current),
            (json!(2), &[("Ready", "False")], Kstatus::InProgress),
            (json!(2), &[("Ready", "Unknown")], Kstatus::InProgress),
            (json!(2), &[], Kstatus::Current),
            (Value::Null, &[("Ready", "True")], Kstatus::Current),
            (Value::Null, &[("Stalled", "True")], Kstatus::Failed),
            (json!("2"), &[], Kstatus::Unknown),
        ] {
            assert_eq!(kstatus(&object(observed.clone(), conditions)), expected, "{observed} {conditions:?}");
        }
    }

    #[test]
    fn an_object_that_is_being_deleted_is_terminating() {
        let mut object = object(json!(1), &[("Stalled", "True")]);
        object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        assert_eq!(kstatus(&object), Kstatus::Terminating);
    }

    #[test]
    fn an_object_without_a_status_is_current_and_one_with_the_default_is_not() {
        assert_eq!(kstatus(&json!({"metadata": {"generation": 1}})), Kstatus::Current);
        let new =
            json!({"metadata": {"generation": 1}, "status": {"phase": "Pending", "observedGeneration": 0}});
        assert_eq!(kstatus(&new), Kstatus::InProgress);
        assert_kstatus(&new);
    }

    #[test]
    fn a_status_that_contradicts_kstatus_is_found() {
        let phase = |phase: &str, conditions: &[(&str, &str)]| {
            let mut object = object(json!(2), conditions);
            object["status"]["phase"] = phase.into();
            object
        };
        let run = |name: &str, is_suspended: bool, conditions: &[(&str, &str)]| {
            let mut object = phase(name, conditions);
            object["kind"] = "ModelEvaluation".into();
            object["spec"]["suspend"] = is_suspended.into();
            object
        };
        for agrees in [
            phase("Ready", &[("Ready", "True")]),
            phase("Loading", &[("Ready", "False"), ("Reconciling", "True")]),
            phase("Failed", &[("Ready", "False"), ("Stalled", "True")]),
            phase("Pending", &[("Ready", "False")]),
            run("Running", false, &[("Complete", "False"), ("Reconciling", "True")]),
            run("Pending", true, &[]),
            run("Pending", true, &[("Reconciling", "True")]),
            run("Failed", false, &[("Failed", "True"), ("Stalled", "True")]),
            run("Succeeded", false, &[("Complete", "True")]),
        ] {
            assert_eq!(consistent(&agrees), Ok(()), "{agrees}");
        }
        let mut rollout = object(json!(2), &[("Ready", "False"), ("Reconciling", "True")]);
        rollout["status"]["currentPhase"] = "Ready".into();
        assert_eq!(consistent(&rollout), Ok(()), "an AIDispatcher");
        for (contradicts, why) in [
            (phase("Failed", &[("Ready", "False")]), "phase Some(\"Failed\") contradicts InProgress"),
            (phase("Loading", &[]), "kstatus is Current, but the status means InProgress"),
            (
                phase("Ready", &[("Ready", "True"), ("Reconciling", "True")]),
                "kstatus is InProgress, but the status means Current",
            ),
            (phase("Ready", &[("Ready", "False")]), "phase Some(\"Ready\") contradicts InProgress"),
            (
                run("Failed", false, &[("Failed", "True")]),
                "kstatus is Current, but the status means InProgress",
            ),
            (run("Succeeded", false, &[("Complete", "True"), ("Reconciling", "True")]), "means Current"),
            (run("Pending", false, &[]), "kstatus is Current, but the status means InProgress"),
            (
                phase("Failed", &[("Reconciling", "True"), ("Stalled", "True")]),
                "it cannot be both Reconciling and Stalled",
            ),
            (phase("Ready", &[("Ready", "True"), ("Stalled", "False")]), "Stalled must be absent"),
        ] {
            let found = consistent(&contradicts).unwrap_err();
            assert!(found.contains(why), "{found} instead of {why}");
        }
    }
}
