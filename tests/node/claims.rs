//! Models in claims: a folder of this machine as a volume that every node can mount.

use std::{fs, path::PathBuf};

use tests::Scene;

/// Creates a claim with a small model and returns the model's source. The folder is deleted with the cluster.
pub(crate) async fn model_in_a_claim(scene: &Scene<'_>) -> String {
    let folder = folder(scene);
    fs::create_dir_all(&folder).expect("a folder for the model");
    fs::write(folder.join("config.json"), "{}").expect("a model");
    fs::write(folder.join("weights.bin"), vec![7; 64 * 1024]).expect("a model");
    claim(scene, &folder).await;
    "pvc://models".to_owned()
}

pub(crate) fn folder(scene: &Scene<'_>) -> PathBuf {
    scene.folder().root().join("models").join(scene.namespace())
}

/// Creates the claim `models` with the folder as its volume.
pub(crate) async fn claim(scene: &Scene<'_>, folder: &std::path::Path) {
    let (namespace, path) = (scene.namespace(), folder.display());
    let yaml = format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: models-{namespace}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadOnlyMany]
  storageClassName: ''
  claimRef: {{namespace: {namespace}, name: models}}
  hostPath: {{path: '{path}', type: Directory}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: models, namespace: {namespace}}}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ''
  volumeName: models-{namespace}
  resources: {{requests: {{storage: 1Gi}}}}
"
    );
    scene.apply(&yaml).await.expect("a volume and its claim");
}
