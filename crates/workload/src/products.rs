//! Short names of GPU products, such as `h100`, and the node labels by which NVIDIA and each cloud name them. Pure.
//!
//! A short name is in lower case, as no value of NVIDIA's label is. So every other product selects what it always has,
//! and its pods keep their templates. What a name selects follows from the release and a file, and never from the
//! nodes: the pods of one object are rendered alike, whenever that is.

use std::collections::BTreeMap;

use api::labels::NVIDIA_GPU_PRODUCT;

/// A node label and its accepted values.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLabel {
    pub key: String,
    pub values: Vec<String>,
    /// Labels that such a node must not have.
    pub without: Vec<Excluded>,
}

/// A node label with any value, or with one of these.
#[derive(Clone, Debug, PartialEq)]
pub struct Excluded {
    pub key: &'static str,
    pub values: &'static [&'static str],
}

/// What the short names select: the table of this release, with the entries of a file in their place.
#[derive(Clone, Debug, PartialEq)]
pub struct Products(BTreeMap<String, Vec<NodeLabel>>);

/// Why a file with products cannot be used. Each message names the line and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidProducts(String);

impl std::fmt::Display for InvalidProducts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for InvalidProducts {}

/// Set by GKE on the nodes of a pool with accelerators.
const GKE: &str = "cloud.google.com/gke-accelerator";
/// Set by GKE on nodes whose GPUs are MIG slices.
const GKE_SLICES: &str = "cloud.google.com/gke-gpu-partition-size";
/// Set by GKE on nodes whose GPUs are shared.
const GKE_SHARES: &str = "cloud.google.com/gke-gpu-sharing-strategy";
/// Set by EKS Auto Mode.
const EKS: &str = "eks.amazonaws.com/instance-gpu-name";
/// Set by Karpenter on AWS, with the values of EKS Auto Mode.
const KARPENTER_AWS: &str = "karpenter.k8s.aws/instance-gpu-name";
/// Instance families of AWS with a fraction of a GPU, which have the product of a whole one.
const FRACTIONS: &[&str] = &["g6f", "gr6f"];
const EKS_FAMILY: &str = "eks.amazonaws.com/instance-family";
const KARPENTER_AWS_FAMILY: &str = "karpenter.k8s.aws/instance-family";
/// Set by Karpenter on Azure, which AKS calls node auto-provisioning.
const KARPENTER_AZURE: &str = "karpenter.azure.com/sku-gpu-name";
/// Set by every cloud. Node groups of EKS and node pools of AKS have no other label with the product: that of AKS,
/// `kubernetes.azure.com/accelerator`, has only the vendor.
pub(crate) const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// A product of this release's table. The values are separated by spaces. Whole GPUs alone: shares and MIG slices have
/// other values of NVIDIA's label, and instance types with a fraction of a GPU are left out.
struct Known {
    name: &'static str,
    /// Of NVIDIA's label.
    nvidia: &'static str,
    gke: &'static str,
    /// Of EKS Auto Mode and of Karpenter on AWS.
    aws: &'static str,
    azure: &'static str,
    instance_types: &'static str,
}

/// A product with NVIDIA's label alone.
const fn with_nvidia_label(name: &'static str, nvidia: &'static str) -> Known {
    Known { name, nvidia, gke: "", aws: "", azure: "", instance_types: "" }
}

const KNOWN: [Known; 21] = [
    Known {
        gke: "nvidia-tesla-t4",
        aws: "t4",
        azure: "T4",
        instance_types: "g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.12xlarge g4dn.16xlarge g4dn.metal \
                         Standard_NC4as_T4_v3 Standard_NC8as_T4_v3 Standard_NC16as_T4_v3 Standard_NC64as_T4_v3",
        ..with_nvidia_label("t4", "Tesla-T4 NVIDIA-T4")
    },
    Known {
        gke: "nvidia-tesla-v100",
        aws: "v100",
        azure: "V100",
        instance_types: "p3.2xlarge p3.8xlarge p3.16xlarge p3dn.24xlarge Standard_ND40rs_v2",
        ..with_nvidia_label(
            "v100",
            "Tesla-V100-SXM2-16GB Tesla-V100-SXM2-32GB Tesla-V100-SXM3-32GB Tesla-V100-PCIE-16GB \
             Tesla-V100-PCIE-32GB Tesla-V100-DGXS-32GB Tesla-V100S-PCIE-32GB",
        )
    },
    with_nvidia_label("a10", "NVIDIA-A10"),
    Known {
        aws: "a10g",
        instance_types: "g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.12xlarge g5.16xlarge g5.24xlarge g5.48xlarge",
        ..with_nvidia_label("a10g", "NVIDIA-A10G")
    },
    with_nvidia_label("a30", "NVIDIA-A30"),
    with_nvidia_label("a40", "NVIDIA-A40"),
    Known {
        gke: "nvidia-tesla-a100 nvidia-a100-80gb",
        aws: "a100",
        azure: "A100",
        instance_types: "p4d.24xlarge p4de.24xlarge Standard_NC24ads_A100_v4 Standard_NC48ads_A100_v4 \
                         Standard_NC96ads_A100_v4 Standard_ND96asr_v4 Standard_ND96amsr_A100_v4",
        ..with_nvidia_label(
            "a100",
            "NVIDIA-A100-SXM4-40GB NVIDIA-A100-SXM4-80GB NVIDIA-A100-PCIE-40GB NVIDIA-A100-PCIE-80GB \
             NVIDIA-A100-80GB-PCIe NVIDIA-A100-SXM-64GB",
        )
    },
    with_nvidia_label("a800", "NVIDIA-A800-SXM4-80GB NVIDIA-A800-80GB-PCIe NVIDIA-A800-SXM4-40GB"),
    Known {
        gke: "nvidia-l4",
        aws: "l4",
        instance_types: "g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.12xlarge g6.16xlarge g6.24xlarge g6.48xlarge \
                         gr6.4xlarge gr6.8xlarge",
        ..with_nvidia_label("l4", "NVIDIA-L4")
    },
    with_nvidia_label("l20", "NVIDIA-L20"),
    with_nvidia_label("l40", "NVIDIA-L40"),
    Known {
        aws: "l40s",
        instance_types: "g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.12xlarge g6e.16xlarge g6e.24xlarge \
                         g6e.48xlarge",
        ..with_nvidia_label("l40s", "NVIDIA-L40S")
    },
    Known {
        gke: "nvidia-h100-80gb nvidia-h100-mega-80gb",
        aws: "h100",
        azure: "H100",
        instance_types: "p5.4xlarge p5.48xlarge Standard_NC40ads_H100_v5 Standard_NC80adis_H100_v5 \
                         Standard_ND96isr_H100_v5",
        ..with_nvidia_label("h100", "NVIDIA-H100-80GB-HBM3 NVIDIA-H100-PCIe NVIDIA-H100-NVL NVIDIA-H100")
    },
    with_nvidia_label("h800", "NVIDIA-H800 NVIDIA-H800-PCIe"),
    with_nvidia_label("h20", "NVIDIA-H20 NVIDIA-H20-3e"),
    Known {
        gke: "nvidia-h200-141gb",
        aws: "h200",
        azure: "H200",
        instance_types: "p5e.48xlarge p5en.48xlarge Standard_ND96isr_H200_v5",
        ..with_nvidia_label("h200", "NVIDIA-H200 NVIDIA-H200-NVL")
    },
    Known {
        gke: "nvidia-b200",
        aws: "b200",
        instance_types: "p6-b200.48xlarge",
        ..with_nvidia_label("b200", "NVIDIA-B200")
    },
    with_nvidia_label("b300", "NVIDIA-B300 NVIDIA-B300-SXM6-AC"),
    Known { gke: "nvidia-gb200", ..with_nvidia_label("gb200", "NVIDIA-GB200") },
    Known { gke: "nvidia-gb300", ..with_nvidia_label("gb300", "NVIDIA-GB300") },
    Known {
        gke: "nvidia-rtx-pro-6000",
        ..with_nvidia_label("rtx-pro-6000", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition")
    },
];

/// Bounds of the file. The labels of all products of a spec are in the template of its pods.
const MOST_PRODUCTS: usize = 64;
const MOST_LABELS: usize = 64;

impl Default for Products {
    fn default() -> Self {
        let known = KNOWN.iter().map(|known| {
            let values = |values: &str| values.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
            let columns = [
                (NVIDIA_GPU_PRODUCT, known.nvidia),
                (GKE, known.gke),
                (EKS, known.aws),
                (KARPENTER_AWS, known.aws),
                (KARPENTER_AZURE, known.azure),
                (INSTANCE_TYPE, known.instance_types),
            ];
            let labels = columns.into_iter().map(|(key, text)| NodeLabel {
                key: key.to_owned(),
                values: values(text),
                without: without(key),
            });
            (known.name.to_owned(), labels.filter(|label| !label.values.is_empty()).collect())
        });
        Self(known.collect())
    }
}

/// A label of a cloud selects no node that has NVIDIA's label. Only NVIDIA's label differs between whole GPUs, shares and MIG
/// slices.
fn without(key: &str) -> Vec<Excluded> {
    let any = |key| Excluded { key, values: &[] };
    let fractions = |key| Excluded { key, values: FRACTIONS };
    let of_cloud = match key {
        NVIDIA_GPU_PRODUCT => return Vec::new(),
        GKE => vec![any(GKE_SLICES), any(GKE_SHARES)],
        EKS => vec![fractions(EKS_FAMILY)],
        KARPENTER_AWS => vec![fractions(KARPENTER_AWS_FAMILY)],
        _ => Vec::new(),
    };
    std::iter::once(any(NVIDIA_GPU_PRODUCT)).chain(of_cloud).collect()
}

impl Products {
    /// The table with the entries of a file: `h100: LABEL=VALUE LABEL=VALUE`, one product on a line. An entry replaces
    /// that of the table, and a new name is added.
    pub fn with_file(text: &str) -> Result<Self, InvalidProducts> {
        let mut of_file: BTreeMap<String, Vec<NodeLabel>> = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || line == "---" {
                continue;
            }
            let wrong = |why: String| InvalidProducts(format!("line {}: {why}", index + 1));
            let (name, labels) = entry(line).map_err(wrong)?;
            if of_file.insert(name.clone(), labels).is_some() {
                return Err(wrong(format!("{name:?} is there twice; write all its labels on one line")));
            }
        }
        if of_file.len() > MOST_PRODUCTS {
            return Err(InvalidProducts(format!(
                "{} products; at most {MOST_PRODUCTS} are allowed",
                of_file.len()
            )));
        }
        let mut products = Self::default();
        products.0.extend(of_file);
        Ok(products)
    }

    /// The labels of products as a spec spells them, with those of short names. A name stays a value of NVIDIA's label, as
    /// every product without a key is one.
    pub(crate) fn labels(&self, spelled: &[String]) -> Vec<NodeLabel> {
        let mut products: Vec<NodeLabel> = Vec::new();
        for spelled in spelled {
            accept(&mut products, spelled);
            for label in self.0.get(spelled).into_iter().flatten() {
                label.values.iter().for_each(|value| add(&mut products, &label.key, value, &label.without));
            }
        }
        products
    }
}

/// The labels of products as a spec spells them: `A100`, or `label=value`.
pub(crate) fn labels(spelled: &[String]) -> Vec<NodeLabel> {
    let mut labels = Vec::new();
    spelled.iter().for_each(|spelled| accept(&mut labels, spelled));
    labels
}

/// What a spec spells twice stays there twice: released templates have it so.
fn accept(labels: &mut Vec<NodeLabel>, spelled: &str) {
    let (key, value) = spelled.split_once('=').unwrap_or((NVIDIA_GPU_PRODUCT, spelled));
    match labels.iter_mut().find(|label| label.key == key && label.without.is_empty()) {
        Some(label) => label.values.push(value.to_owned()),
        None => labels.push(label(key, value, &[])),
    }
}

/// Adds an accepted value once.
fn add(labels: &mut Vec<NodeLabel>, key: &str, value: &str, without: &[Excluded]) {
    match labels.iter_mut().find(|label| label.key == key && label.without == without) {
        Some(label) if label.values.iter().any(|known| known == value) => {}
        Some(label) => label.values.push(value.to_owned()),
        None => labels.push(label(key, value, without)),
    }
}

fn label(key: &str, value: &str, without: &[Excluded]) -> NodeLabel {
    NodeLabel { key: key.to_owned(), values: vec![value.to_owned()], without: without.to_vec() }
}

fn entry(line: &str) -> Result<(String, Vec<NodeLabel>), String> {
    const FORM: &str = "write for example `h100: cloud.google.com/gke-accelerator=nvidia-h100-80gb`";
    let (name, text) = line.split_once(':').ok_or_else(|| format!("{line:?} has no colon; {FORM}"))?;
    let name = name.trim();
    let is_short = is_value(name) && !name.bytes().any(|byte| byte.is_ascii_uppercase());
    if !is_short {
        return Err(format!("{name:?} is no name of lower-case letters, digits, '-', '_' and '.'; {FORM}"));
    }
    let mut labels = Vec::new();
    for pair in text.split_whitespace() {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("{pair:?} is no label=value; {FORM}"))?;
        if !is_key(key) || !is_value(value) {
            return Err(format!("{pair:?} is no label of a node; {FORM}"));
        }
        add(&mut labels, key, value, &[]);
    }
    let count = labels.iter().map(|label| label.values.len()).sum::<usize>();
    match count {
        0 => Err(format!("{name:?} has no label; {FORM}")),
        1..=MOST_LABELS => Ok((name.to_owned(), labels)),
        _ => Err(format!("{name:?} has {count} labels; at most {MOST_LABELS} are allowed")),
    }
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((domain, name)) => is_domain(domain) && is_value(name),
        None => is_value(key),
    }
}

fn is_domain(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

/// A value of a label, and the name of one. The API server would refuse a pod with another.
fn is_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = [text.bytes().next(), text.bytes().next_back()];
    text.len() <= 63
        && text.bytes().all(is_inner)
        && ends.into_iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use crate::faults::gpu::Gpus;

    use super::*;

    fn shown(gpus: Gpus) -> Vec<String> {
        gpus.products.iter().map(|label| format!("{} in {}", label.key, label.values.join(" "))).collect()
    }

    fn resolved(products: &Products, spelled: &[&str]) -> Gpus {
        Gpus::new(1, "nvidia.com/gpu", spelled.iter().copied()).resolved(products)
    }

    #[test]
    fn a_short_name_selects_the_labels_of_every_cloud() {
        let gpus = resolved(&Products::default(), &["h200"]);
        assert_eq!(gpus.product_names().as_deref(), Some("h200"));
        assert_eq!(
            shown(gpus),
            [
                "nvidia.com/gpu.product in h200 NVIDIA-H200 NVIDIA-H200-NVL",
                "cloud.google.com/gke-accelerator in nvidia-h200-141gb",
                "eks.amazonaws.com/instance-gpu-name in h200",
                "karpenter.k8s.aws/instance-gpu-name in h200",
                "karpenter.azure.com/sku-gpu-name in H200",
                "node.kubernetes.io/instance-type in p5e.48xlarge p5en.48xlarge Standard_ND96isr_H200_v5",
            ]
        );
    }

    #[test]
    fn every_other_product_selects_what_it_always_has() {
        let products = Products::default();
        for spelled in [
            &["A100"][..],
            &["A100", "H100", "A100"],
            &["NVIDIA-H100-80GB-HBM3", "example.com/card=h100"],
            &["nvidia.com/gpu.product=h100"],
            &[],
        ] {
            let plain = Gpus::new(2, "nvidia.com/gpu", spelled.iter().copied());
            assert_eq!(plain.clone().resolved(&products), plain, "{spelled:?}");
        }
    }

    #[test]
    fn several_names_share_the_labels() {
        let labels = shown(resolved(&Products::default(), &["l40", "A100", "gb200", "example.com/card=x"]));
        assert_eq!(
            labels,
            [
                "nvidia.com/gpu.product in l40 NVIDIA-L40 A100 gb200 NVIDIA-GB200",
                "cloud.google.com/gke-accelerator in nvidia-gb200",
                "example.com/card in x",
            ]
        );
    }

    #[test]
    fn the_table_has_labels_that_the_api_server_accepts() {
        let products = Products::default();
        assert_eq!(products.0.len(), KNOWN.len(), "a name is there twice");
        for (name, labels) in &products.0 {
            let line = labels.iter().flat_map(|NodeLabel { key, values, .. }| {
                values.iter().map(move |value| format!("{key}={value}"))
            });
            let line = format!("{name}: {}", line.collect::<Vec<_>>().join(" "));
            let plain = |label: &NodeLabel| NodeLabel { without: Vec::new(), ..label.clone() };
            assert_eq!(entry(&line), Ok((name.clone(), labels.iter().map(plain).collect())));
        }
        let values = products.0.values().flatten().flat_map(|label| &label.values);
        let wrong: Vec<&String> =
            values.filter(|value| value.ends_with("-SHARED") || value.contains("-MIG-")).collect();
        assert!(wrong.is_empty(), "a share is no whole GPU: {wrong:?}");
    }

    #[test]
    fn a_file_replaces_entries_and_adds_others() {
        let file = "# ours\n\nh200: example.com/card=x example.com/card=y cloud=big\n  a1: nvidia.com/gpu.product=A1\n";
        let products = Products::with_file(file).unwrap();
        assert_eq!(
            shown(resolved(&products, &["h200"])),
            ["nvidia.com/gpu.product in h200", "example.com/card in x y", "cloud in big"]
        );
        assert_eq!(shown(resolved(&products, &["a1"])), ["nvidia.com/gpu.product in a1 A1"]);
        assert_eq!(resolved(&products, &["l4"]), resolved(&Products::default(), &["l4"]));
        assert_eq!(Products::with_file(""), Ok(Products::default()));
    }

    #[test]
    fn a_wrong_file_names_the_line_and_the_fix() {
        let many = format!("h100: {}", (0..65).map(|n| format!("a=v{n} ")).collect::<String>());
        for (text, complaint) in [
            ("\nh100", "line 2: \"h100\" has no colon; write for example `h100: "),
            ("H100: a=b", "line 1: \"H100\" is no name of lower-case letters"),
            (": a=b", "line 1: \"\" is no name"),
            ("h100:", "line 1: \"h100\" has no label; "),
            ("h100: a", "line 1: \"a\" is no label=value; "),
            ("h100: a/b/c=d", "line 1: \"a/b/c=d\" is no label of a node; "),
            ("h100: a=b=c", "is no label of a node"),
            ("h100: A.b/c=d", "is no label of a node"),
            ("h100: a=-b", "is no label of a node"),
            ("h100: a=", "is no label of a node"),
            ("h100: a=b\nh100: a=c", "line 2: \"h100\" is there twice"),
            (&many, "\"h100\" has 65 labels; at most 64"),
        ] {
            let found = Products::with_file(text).unwrap_err().to_string();
            assert!(found.contains(complaint), "{text:?}: {found}");
        }
        let many: String = (0..65).map(|n| format!("p{n}: a=b\n")).collect();
        assert!(Products::with_file(&many).unwrap_err().to_string().starts_with("65 products; at most 64"));
    }
}
