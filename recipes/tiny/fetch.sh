#!/usr/bin/env bash
# Clone the public copies of the training and test images (about 6 GB), and CoOp's splits.
#     recipes/tiny/fetch.sh clones
set -euo pipefail
folder=${1:?give a folder for the clones}
for name in seshuad/IMagenet thunderInfy/imagenette q878787/imagewoof2-320 \
    MachineLearning2020/Homework2-Caltech101 shlim2210/oxford-pets-datasets \
    cyizhuo/Stanford_Cars_dataset cyizhuo/CUB-200-2011-dataset srohit0/food_mnist \
    Neilus03/GAN_food101 tnagire1/flickr8k_dataset mariodoebler/test-time-adaptation \
    3ba2ii/Flower-Classifier pan8915/DeepTexture MachineLearning2020/Homework3-PACS \
    Vinayak2005917/CNN-based-Satellite-Image-Classifier-trained-on-EuroSat; do
    at=$folder/${name/\//+}/repo
    if [ -d "$at" ]; then continue; fi  # cloned before
    git clone --bare --depth 1 "https://github.com/$name" "$at.part"
    mv "$at.part" "$at"
done
