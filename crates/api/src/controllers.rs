//! The table of controllers and of the programs beside them, used for images, builds, samples, admission policies,
//! `cargo xtask up`, the tests of every controller and the checks of the manuals.
//!
//! ARCHITECTURE.md lists the other parts of a new controller. Kinds without a controller are not listed. Data only.

use kube::core::{ApiResource, DynamicObject};

use crate::{
    aidispatcher::AIDispatcher,
    aiinference::{AIInference, endpoint::InferenceEndpoint, evaluation::ModelEvaluation},
    aiscaler::AIScaler,
    conditions, labels,
    trainingjob::TrainingJob,
};

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
    /// Those of them that it creates without an owner, so that they stay when their object is deleted.
    pub kept: &'static [&'static str],
    /// Those of which it also changes the weights of backends in objects of others.
    pub shared: &'static [&'static str],
    /// The finalizer that it sets on objects of its kinds. Its admission policy allows it no other change of their metadata
    /// and none of their spec.
    pub finalizer: Option<&'static str>,
    /// Whether it sets the annotations `labels::POD_MARKS` of pods of its children.
    pub marks_pods: bool,
    /// The resources whose scale subresource it writes, by API group, beside those that administrators add.
    pub scales: &'static [(&'static str, &'static [&'static str])],
    /// Whether it has the options of subscribers to metrics agents.
    pub reads_agents: bool,
    /// Programs that it runs in users' pods, each with its own image.
    pub programs: &'static [Program],
}

/// A kind and the condition that shows its completion.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    resource: fn() -> ApiResource,
    /// Condition type for `kubectl wait --for=condition=<done>`.
    pub done: &'static str,
    /// Files in `deploy/samples`, which `cargo xtask up` applies.
    pub samples: &'static [&'static str],
    /// Others, which need something first, or are meant to fail.
    pub further_samples: &'static [&'static str],
}

/// A program that runs in users' clusters. Its crate and its image have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    /// Label `org.opencontainers.image.description` of its image.
    pub description: &'static str,
    pub libc: Libc,
    /// The largest size that it may have in a release, in bytes.
    pub budget: u64,
}

/// Of a program without a promise of its own.
pub const BUDGET: u64 = 20_000_000;

/// The C library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// Linked statically: the image holds the program alone.
    Musl,
    /// Linked dynamically, for programs that load libraries of the node at run time; the image holds the library too.
    Glibc,
}

pub const CONTROLLERS: &[Controller] = &[
    Controller {
        name: "inference-controller",
        description: "Runs model servers on Kubernetes",
        kinds: &[Kind {
            resource: || ApiResource::erase::<AIInference>(&()),
            done: conditions::READY,
            samples: &["aiinference-triton-claim.yaml", "aiinference.yaml"],
            further_samples: &["aiinference-canary.yaml", "aiinference-hub.yaml"],
        }],
        children: &[
            ("", &["configmaps", "services"]),
            ("apps", &["deployments"]),
            ("policy", &["poddisruptionbudgets"]),
            ("gateway.networking.k8s.io", &["grpcroutes", "httproutes"]),
            ("inference.networking.k8s.io", &["inferencepools"]),
        ],
        kept: &[],
        shared: &["httproutes"],
        finalizer: None,
        marks_pods: true,
        scales: &[],
        reads_agents: true,
        programs: &[MODEL_TRANSFER],
    },
    Controller {
        name: "dispatcher-controller",
        description: "Runs pools of stateful agents on Kubernetes",
        kinds: &[Kind {
            resource: || ApiResource::erase::<AIDispatcher>(&()),
            done: conditions::READY,
            samples: &["aidispatcher.yaml"],
            further_samples: &["aidispatcher-checkpoint.yaml", "aidispatcher-memory.yaml"],
        }],
        children: &[("", &["services"]), ("apps", &["deployments"]), ("policy", &["poddisruptionbudgets"])],
        kept: &[],
        shared: &[],
        finalizer: None,
        marks_pods: true,
        scales: &[],
        reads_agents: false,
        programs: &[MONITOR, AGENT],
    },
    Controller {
        name: "scaler-controller",
        description: "Scales AI workloads by GPU load, queues and any Prometheus query",
        kinds: &[Kind {
            resource: || ApiResource::erase::<AIScaler>(&()),
            done: conditions::READY,
            samples: &["aiscaler.yaml"],
            further_samples: &["aiscaler-gpu.yaml"],
        }],
        children: &[],
        kept: &[],
        shared: &[],
        finalizer: None,
        marks_pods: false,
        scales: &[
            ("ai.infra.example.com", &["aiinferences"]),
            ("apps", &["deployments", "statefulsets"]),
            ("southwest.ai", &["aidispatchers"]),
        ],
        reads_agents: true,
        programs: &[],
    },
    Controller {
        name: "endpoint-controller",
        description: "Serves models by their names on Kubernetes",
        kinds: &[Kind {
            resource: || ApiResource::erase::<InferenceEndpoint>(&()),
            done: conditions::READY,
            samples: &["inferenceendpoint.yaml"],
            further_samples: &["inferenceendpoint-scaler.yaml"],
        }],
        children: &[
            ("ai.infra.example.com", &["aiinferences", "aiscalers"]),
            ("autoscaling", &["horizontalpodautoscalers"]),
        ],
        kept: &[],
        shared: &[],
        finalizer: None,
        marks_pods: false,
        scales: &[],
        reads_agents: false,
        programs: &[],
    },
    Controller {
        name: "evaluation-controller",
        description: "Compares two models on Kubernetes",
        kinds: &[Kind {
            resource: || ApiResource::erase::<ModelEvaluation>(&()),
            done: conditions::COMPLETE,
            samples: &[],
            further_samples: &["modelevaluation-pipeline.yaml", "modelevaluation.yaml"],
        }],
        children: &[
            ("", &["persistentvolumeclaims"]),
            ("batch", &["jobs"]),
            ("ai.infra.example.com", &["aiinferences"]),
        ],
        kept: &[],
        shared: &[],
        finalizer: None,
        marks_pods: false,
        scales: &[],
        reads_agents: false,
        programs: &[EVAL_RUNNER, MODEL_TRANSFER],
    },
    Controller {
        name: "training-controller",
        description: "Runs fine-tuning jobs on Kubernetes",
        kinds: &[Kind {
            resource: || ApiResource::erase::<TrainingJob>(&()),
            done: conditions::COMPLETE,
            samples: &["trainingjob-pipeline.yaml"],
            further_samples: &["trainingjob-too-large.yaml", "trainingjob.yaml"],
        }],
        children: &[
            ("", &["persistentvolumeclaims", "services"]),
            ("batch", &["jobs"]),
            ("snapshot.storage.k8s.io", &["volumesnapshots"]),
        ],
        kept: &["persistentvolumeclaims", "volumesnapshots"],
        shared: &[],
        finalizer: Some(labels::OUTPUT_FINALIZER),
        marks_pods: false,
        scales: &[],
        reads_agents: true,
        programs: &[MODEL_TRANSFER, TRAINING_LAUNCHER],
    },
];

pub const MODEL_TRANSFER: Program = Program {
    name: "model-transfer",
    description: "Copies models between an S3-compatible store and a folder",
    libc: Libc::Musl,
    budget: BUDGET,
};

pub const TRAINING_LAUNCHER: Program = Program {
    name: crate::launcher::PROGRAM,
    description: "Runs a trainer so that it resumes, stops in time and proves its result",
    libc: Libc::Musl,
    budget: BUDGET,
};

pub const EVAL_RUNNER: Program = Program {
    name: crate::launcher::evaluator::PROGRAM,
    description: "Runs an evaluation harness and reduces its answers to counts",
    libc: Libc::Musl,
    budget: BUDGET,
};

pub const MONITOR: Program = Program {
    name: "monitor",
    description: "Loads the memory of an agent, saves its state and streams its load",
    libc: Libc::Musl,
    // It is in each pod of a worker.
    budget: 8_000_000,
};

/// The worker of pools without an image of their own.
pub const AGENT: Program = Program {
    name: "agent",
    description: "Works on tasks with a model, and keeps its sessions",
    libc: Libc::Musl,
    // It is in each pod of a worker.
    budget: 8_000_000,
};

pub const METRICS_AGENT: Program = Program {
    name: "metrics-agent",
    description: "Streams what each accelerator of a node does, and for which pod",
    libc: Libc::Glibc,
    budget: BUDGET,
};

/// Programs that run on nodes, by manifests of their own in `deploy`.
pub const NODE_PROGRAMS: &[Program] = &[METRICS_AGENT];

/// Registry of released images.
pub const REGISTRY: &str = "ghcr.io/ai-controllers";

impl Program {
    /// The released image with this tag.
    pub fn image(&self, tag: &str) -> String {
        format!("{REGISTRY}/{}:{tag}", self.name)
    }
}

/// Every program that is released as an image: the controllers, then the programs in users' pods and those on nodes.
pub fn released() -> Vec<Program> {
    let controllers = CONTROLLERS.iter().map(|&Controller { name, description, .. }| Program {
        name,
        description,
        libc: Libc::Musl,
        budget: BUDGET,
    });
    let mut programs: Vec<Program> = controllers.collect();
    for program in CONTROLLERS.iter().flat_map(|controller| controller.programs).chain(NODE_PROGRAMS) {
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

    /// The same kind, which is done with another condition.
    pub fn done_with(self, done: &'static str) -> Kind {
        Kind { done, ..self }
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
