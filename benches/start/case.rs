use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

use crate::failure::Failure;
use crate::program::{self, Nodes};
use crate::{embedded, first_child, measure, upstream};

/// Something that starts and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// `ApiServer::builder().build()` to the first answer, in a process that did nothing before.
    ApiServer,
    /// The same for the second server of a process.
    NextApiServer,
    /// `TestEnv::embedded()` to the first child of a custom resource, in a process that did nothing before.
    FirstChild,
    /// The same for the second test of a process.
    NextFirstChild,
    /// `setpoint dev --nodes hollow`, from the start of its process to the first answer over HTTPS.
    HollowNodes,
    /// `setpoint dev --nodes process`, likewise.
    ProcessNodes,
    /// etcd and kube-apiserver, from the start of etcd's process to ready.
    KubeApiserver,
}

impl Case {
    /// In the order in which they run.
    pub(crate) const ALL: [Self; 7] = [
        Self::ApiServer,
        Self::NextApiServer,
        Self::FirstChild,
        Self::NextFirstChild,
        Self::HollowNodes,
        Self::ProcessNodes,
        Self::KubeApiserver,
    ];

    /// What it measures, in a few words.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::ApiServer => "API server in a test, first answer",
            Self::NextApiServer => "API server in a test, the next one in this process",
            Self::FirstChild => "cluster, CRD, operator, first child in a test",
            Self::NextFirstChild => "cluster, CRD, operator, first child, the next test",
            Self::HollowNodes => "setpoint dev --nodes hollow, first HTTPS answer",
            Self::ProcessNodes => "setpoint dev --nodes process, first HTTPS answer",
            Self::KubeApiserver => "etcd and kube-apiserver, ready",
        }
    }

    /// The median is to be below this; none for what is only compared with.
    pub(crate) fn target(self) -> Option<Duration> {
        match self {
            Self::ApiServer | Self::NextApiServer => Some(Duration::from_millis(20)),
            Self::FirstChild | Self::NextFirstChild => Some(Duration::from_millis(200)),
            Self::HollowNodes => Some(Duration::from_millis(100)),
            Self::ProcessNodes | Self::KubeApiserver => None,
        }
    }

    /// Why it cannot run here.
    pub(crate) fn unavailable(self) -> Option<String> {
        match self {
            Self::KubeApiserver => upstream::unavailable(),
            _ => None,
        }
    }

    /// Runs it once and says how long it took.
    pub(crate) fn run(self, program: &Path) -> Result<Duration, Failure> {
        match self {
            Self::ApiServer | Self::NextApiServer | Self::FirstChild | Self::NextFirstChild => {
                measure::in_new_process(self)
            }
            Self::HollowNodes => program::first_answer(program, Nodes::Hollow),
            Self::ProcessNodes => program::first_answer(program, Nodes::Process),
            Self::KubeApiserver => upstream::ready(),
        }
    }

    /// Runs it once in this process, if it is a case that belongs into a test.
    pub(crate) fn once(self) -> Result<Duration, Failure> {
        match self {
            Self::ApiServer => measure::in_test(embedded::first_answer),
            Self::NextApiServer => {
                measure::in_test(embedded::first_answer)?;
                measure::in_test(embedded::first_answer)
            }
            Self::FirstChild => measure::in_test(first_child::first_child),
            Self::NextFirstChild => {
                measure::in_test(first_child::first_child)?;
                measure::in_test(first_child::first_child)
            }
            Self::HollowNodes | Self::ProcessNodes | Self::KubeApiserver => {
                Err(Failure::Refused(format!("{self:?} runs in a process of its own")))
            }
        }
    }
}
