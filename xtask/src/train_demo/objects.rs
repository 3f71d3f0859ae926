//! The objects of the demo: a namespace with Pod Security `restricted`, claims of folders of this machine, and the
//! TrainingJob. Pure.

use api::labels;
use local_cluster::HUB_ADDRESS;
use serde_json::{Value, json};

use super::image;
use crate::python::Environment;

pub(super) const NAMESPACE: &str = "train-demo";
pub(super) const JOB: &str = "sums";
pub(super) const BUCKET: &str = "models";
pub(super) const STORE_PORT: u16 = 9000;
/// Of an S3 server that lives as long as the demo.
pub(super) const ACCESS_KEY: &str = "train-demo";
pub(super) const SECRET_KEY: &str = "train-demo-secret";
const SECRET: &str = "store";
/// One takes 0.1 s to 0.5 s, and the status follows within 10 s: enough to be interrupted twice.
const STEPS: &str = "400";
const SAVE_STEPS: u32 = 20;

/// Everything that the job refers to, in the order in which it is created.
pub(super) fn surroundings(environment: &Environment) -> Vec<Value> {
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE, "labels": labels } }),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": SECRET },
            "stringData": { "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY },
        }),
    ];
    for (name, folder) in folders(environment) {
        objects.extend([volume(name, &folder), claim(name)]);
    }
    objects
}

/// Folders of this machine, and the claims that bring them into the pod. The one of Python is there even if the system's
/// Python does not need it.
fn folders(environment: &Environment) -> [(&'static str, String); 3] {
    let [python, folder] = [&environment.python, &environment.folder].map(|path| path.display().to_string());
    [("usr", "/usr".to_owned()), ("python", python), ("train-demo", folder)]
}

fn volume(name: &str, folder: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "claimRef": { "namespace": NAMESPACE, "name": name },
            "hostPath": { "path": folder, "type": "Directory" },
        },
    })
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

/// As a user would write it for images and claims of their own.
pub(super) fn job() -> Value {
    let input = |claim: &str, path: &str| json!({ "claimName": claim, "mountPath": path });
    json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "TrainingJob",
        "metadata": { "name": JOB },
        "spec": {
            "model": "/data/model",
            "dataset": "/data/sums.jsonl",
            "method": "lora",
            "device": "cpu",
            "image": image::REFERENCE,
            "swiftVersion": "4.6",
            "saveSteps": SAVE_STEPS,
            "inputs": [
                { "claimName": "train-demo", "subPath": "inputs", "mountPath": "/data" },
                input("train-demo", image::FOLDER),
                input("python", image::PYTHON),
                input("usr", image::USR),
            ],
            // ms-swift cannot tell the architecture of a model by its folder.
            "extraArgs": [
                "--model_type", "qwen2", "--template", "qwen2_5", "--max_steps", STEPS, "--dataloader_num_workers", "0",
            ],
            // Threads cost more than they bring for a model of this size.
            "env": [{ "name": "OMP_NUM_THREADS", "value": "1" }],
            "output": {
                "size": "1Gi",
                "upload": {
                    "uri": format!("s3://{BUCKET}/{JOB}"),
                    "endpoint": format!("http://{HUB_ADDRESS}:{STORE_PORT}"),
                    "secretName": SECRET,
                },
            },
        },
    })
}

/// The pods of the job that train.
pub(super) fn selector() -> String {
    format!("{}=trainingjob,{}={JOB}", labels::NAME, labels::INSTANCE)
}

#[cfg(test)]
mod tests {
    use api::trainingjob::TrainingJob;

    use super::*;

    #[test]
    fn the_job_is_one_and_each_of_its_inputs_has_a_claim() {
        let job: TrainingJob = serde_json::from_value(job()).unwrap();
        let environment = Environment { python: "/opt/python".into(), folder: "/root/.cache/demo".into() };
        let objects = surroundings(&environment);
        for input in job.spec.inputs {
            let is_its_claim = |object: &&Value| {
                object["kind"] == "PersistentVolumeClaim"
                    && object["metadata"]["name"] == input.claim_name.as_str()
            };
            assert_eq!(objects.iter().filter(is_its_claim).count(), 1, "{}", input.claim_name);
        }
    }
}
