#!/bin/sh
# Builds the journals of this folder from the logs that they come from:
#     git clone https://github.com/octoml/qualcomm && sh tuning_logs/build.sh qualcomm
set -eu
from=$1
here=$(dirname "$0")

build() { # journal, folder of logs, device, logs
    journal=$here/$1.journal folder=$2 device=$3
    shift 3
    rm -f "$journal"
    for log; do
        tvmflow journal import "$from/$folder/$log" --journal "$journal" --key "$(basename "$journal" .journal)" \
            --device-name "$device" --note "github.com/octoml/qualcomm, $folder, Apache-2.0"
    done
    tvmflow journal compact "$journal"
}

build adreno660 logs "Adreno 660 (Snapdragon 888)" \
    mace_mobilenetv1_nchw.texture.float32.autotvm.log \
    mace_mobilenetv1_nchw.texture.float16.acc16.autotvm.log \
    mace_mobilenetv1_nhwc.texture.float16.acc32.autotvm.log \
    mace_resnet50_v2.texture.float16.acc32.autotvm.log
build adreno740 logs_8gen2 "Adreno 740 (Snapdragon 8 Gen 2)" \
    mace_mobilenetv1_nchw.texture.float16_acc32.autotvm.log \
    mace_resnet50_v2.texture.float32.autotvm.log
