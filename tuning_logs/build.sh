#!/bin/sh
# Builds the journals of phones from what they come from: a clone of github.com/octoml/qualcomm, and
# the tables that armgpu.py describes.
#     sh tuning_logs/build.sh qualcomm armgpu
# Each journal has the fastest trial of each workload.
set -eu
qualcomm=$1 armgpu=$2
here=$(dirname "$0")

log() { # name of a file without the end
    tvmflow journal import "$qualcomm/$folder/$1.autotvm.log" --journal "$journal" --usable \
        --key "$key" --device-name "$device" \
        --note "github.com/octoml/qualcomm d57b94c2, $folder, Apache-2.0"
}

begin() { # key, device, folder of logs
    key=$1 device=$2 folder=$3 journal=$here/$1.journal
    rm -f "$journal"
}

compact() {
    tvmflow journal compact "$journal" --best 1
}

begin adreno640 "" ""
python "$here/armgpu.py" "$armgpu" >"$journal.json"
tvmflow journal import "$journal.json" --journal "$journal"
rm "$journal.json"
compact

begin adreno660 "Adreno 660 (Snapdragon 888)" logs
for network in mace_mobilenetv1_nchw mace_mobilenetv1_nhwc mace_resnet50_v2 mace_inceptionv3 \
    mxnet_vgg16; do
    for sums in float32 float16.acc32 float16.acc16; do
        log "$network.texture.$sums"
    done
done
compact

begin adreno730 "Adreno 730 (Snapdragon 8 Gen 1)" logs_gen1
for network in mace_mobilenetv1_nchw.texture mace_resnet50_v2.texture onnx_faster_rcnn \
    onnx_ssd_resnet34; do
    for sums in float32 float16.acc32 float16.acc16; do
        log "$network.$sums"
    done
done
log classifier_nhwc.texture.float16.acc16
log detector_nchw.texture.float16.acc16
compact

begin adreno740 "Adreno 740 (Snapdragon 8 Gen 2)" logs_8gen2
for network in mace_mobilenetv1_nchw mace_resnet50_v2 onnx_faster_rcnn onnx_ssd_resnet34; do
    for sums in float32 float16_acc32 float16; do
        log "$network.texture.$sums"
    done
done
compact
