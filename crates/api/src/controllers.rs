//! The table of controllers, used for images, builds, samples, admission policies, `cargo xtask up`, the tests of every
//! controller and the checks of the manuals.
//!
//! ARCHITECTURE.md lists the other parts of a new controller. Kinds without a controller are not listed. Data only.

use kube::core::{ApiResource, DynamicObject};

use crate::{aiinference::AIInference, conditions};

/// A controller. Its crate, program, image, folder in `deploy`, ServiceAccount and Lease have the same name.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    pub name: &'static str,
    /// Label `org.opencontainers.image.description` of its image.
    pub description: &'static str,
    /// The kinds whose status it writes.
    pub kinds: &'static [Kind],
    /// The resources that it creates for its objects, by API group. Its admission policy allows it no others.
    pub children: &'static [(&'static str, &'static [&'static str])],
    /// Programs that it runs in users' pods, each with its own image.
    pub programs: &'static [Program],
}

/// A kind and the condition that shows its completion.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    resource: fn() -> ApiResource,
    /// Condition type for `kubectl wait --for=condition=<done>`.
    pub done: &'static str,
    /// Files in `deploy/samples`.
    pub samples: &'static [&'static str],
}

/// A program that runs in users' clusters. Its crate and its image have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    /// Label `org.opencontainers.image.description` of its image.
    pub description: &'static str,
}

pub const CONTROLLERS: &[Controller] = &[Controller {
    name: "inference-controller",
    description: "Runs model servers on Kubernetes",
    kinds: &[Kind {
        resource: || ApiResource::erase::<AIInference>(&()),
        done: conditions::READY,
        samples: &["aiinference-triton-claim.yaml", "aiinference.yaml"],
    }],
    children: &[
        ("", &["configmaps", "services"]),
        ("apps", &["deployments"]),
        ("policy", &["poddisruptionbudgets"]),
    ],
    programs: &[MODEL_TRANSFER],
}];

pub const MODEL_TRANSFER: Program = Program {
    name: "model-transfer",
    description: "Copies models between an S3-compatible store and a folder",
};

/// Registry of released images.
pub const REGISTRY: &str = "ghcr.io/ai-controllers";

impl Program {
    /// The released image with this tag.
    pub fn image(&self, tag: &str) -> String {
        format!("{REGISTRY}/{}:{tag}", self.name)
    }
}

/// Every program that is released as an image: the controllers, then the programs in users' pods.
pub fn released() -> Vec<Program> {
    let controllers =
        CONTROLLERS.iter().map(|&Controller { name, description, .. }| Program { name, description });
    let mut programs: Vec<Program> = controllers.collect();
    for program in CONTROLLERS.iter().flat_map(|controller| controller.programs) {
        if !programs.contains(program) {
            programs.push(*program);
        }
    }
    programs
}

impl Kind {
    /// Group, version, kind and plural.
    pub fn resource(&self) -> ApiResource {
        (self.resource)()
    }

    /// Whether the condition is True for the current generation.
    pub fn is_done(&self, object: &DynamicObject) -> bool {
        let conditions = object.data["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == self.done
                && condition["status"] == "True"
                && condition["observedGeneration"].as_i64() == object.metadata.generation
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::crds::crds;

    #[test]
    fn each_kind_has_a_definition_and_one_controller() {
        let defined: BTreeSet<String> = crds().into_iter().map(|crd| crd.spec.names.kind).collect();
        let mut kinds = BTreeSet::new();
        for kind in CONTROLLERS.iter().flat_map(|controller| controller.kinds) {
            let name = kind.resource().kind;
            assert!(defined.contains(&name), "{name}");
            assert!(kinds.insert(name.clone()), "{name} has two controllers");
        }
        assert!(!kinds.is_empty());
    }

    #[test]
    fn a_program_of_two_controllers_is_released_once() {
        let names: Vec<&str> = released().iter().map(|program| program.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert!(names.contains(&"inference-controller") && names.contains(&"model-transfer"), "{names:?}");
    }

    #[test]
    fn an_object_is_done_when_the_condition_is_true_for_its_generation() {
        let kind = CONTROLLERS[0].kinds[0];
        let object = |status: &str, observed: i64| -> DynamicObject {
            let ready = json!({"type": kind.done, "status": status, "observedGeneration": observed});
            serde_json::from_value(json!({"metadata": {"generation": 2}, "status": {"conditions": [ready]}}))
                .unwrap()
        };
        assert!(kind.is_done(&object("True", 2)));
        assert!(!kind.is_done(&object("True", 1)) && !kind.is_done(&object("False", 2)));
        assert!(!kind.is_done(&serde_json::from_value(json!({"metadata": {"generation": 1}})).unwrap()));
    }
}
